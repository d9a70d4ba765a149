package store

import (
	"context"
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

func scanText(r row) (v string, err error) { return v, r.Scan(&v) }

// wrap adds what we were doing to err; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
