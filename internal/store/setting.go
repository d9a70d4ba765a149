package store

import (
	"context"
	"encoding/hex"
	"fmt"
)

// Setting returns the value of a setting, or "" for one that was never set.
func (s *Store) Setting(ctx context.Context, key string) (string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT value FROM settings WHERE key = $1`, key)
	if err != nil || len(all) == 0 {
		return "", wrap(err, "read setting %s", key)
	}
	return all[0], nil
}

// SetSetting writes the value of a setting.
func (s *Store) SetSetting(ctx context.Context, key, value string) error {
	_, err := s.write.ExecContext(ctx, `INSERT INTO settings (key, value) VALUES ($1, $2)
		ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return wrap(err, "write setting %s", key)
}

// SealedSetting returns the value of a setting that is sealed, or nil for one
// that was never set.
func (s *Store) SealedSetting(ctx context.Context, key string) ([]byte, error) {
	text, err := s.Setting(ctx, key)
	if err != nil || text == "" {
		return nil, err
	}
	sealed, err := hex.DecodeString(text)
	if err != nil {
		return nil, wrap(err, "read setting %s", key)
	}
	return s.cipher.Unseal(sealed, settingPlace+key)
}

// SetSealedSetting seals and writes the value of a setting.
func (s *Store) SetSealedSetting(ctx context.Context, key string, value []byte) error {
	return s.SetSetting(ctx, key, hex.EncodeToString(s.cipher.Seal(value, settingPlace+key)))
}

const settingPlace = "setting/"

func scanText(r row) (v string, err error) { return v, r.Scan(&v) }

func scanNumber(r row) (n int, err error) { return n, r.Scan(&n) }

// wrap adds what we were doing to err; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
