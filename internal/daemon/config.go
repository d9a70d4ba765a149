package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// configMax bounds a configuration file.
const configMax = 1 << 20

// ReadConfig fills config from a JSON file. What the file does not mention
// stays as it is. A key that config does not have is an error, because it is a
// setting that somebody believes to have made. Renamed has the present name of
// each key that was renamed; ReadConfig calls told for each that the file has. Where a
// list took the place of a string, the string is the only entry.
func ReadConfig(name string, config any, renamed map[string]string, told func(old, now string)) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, configMax+1))
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if len(raw) > configMax {
		return fmt.Errorf("%s is larger than %d bytes", name, configMax)
	}
	if raw, err = renameKeys(raw, config, renamed, told); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(config); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: there is something behind the configuration", name)
	}
	return nil
}

// renameKeys gives keys of a JSON object their present names. A file without an
// old key stays as it is, whatever is wrong with it.
func renameKeys(raw []byte, config any, renamed map[string]string, told func(old, now string)) ([]byte, error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return raw, nil //nolint:nilerr // the strict decoder says why
	}
	changed := false
	for old, now := range renamed {
		value, ok := members[old]
		if !ok {
			continue
		}
		if _, twice := members[now]; twice {
			return nil, fmt.Errorf("%s and %s are the same setting: remove %s", old, now, old)
		}
		told(old, now)
		if isList(config, now) && bytes.HasPrefix(value, []byte{'"'}) {
			value = slices.Concat([]byte{'['}, value, []byte{']'})
		}
		members[now], changed = value, true
		delete(members, old)
	}
	if !changed {
		return raw, nil
	}
	return json.Marshal(members)
}

// isList reports whether a key of config, a pointer to a struct, has a list.
func isList(config any, key string) bool {
	for f := range reflect.TypeOf(config).Elem().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return f.Type.Kind() == reflect.Slice
		}
	}
	return false
}

// ReadEnvironment sets every flag that was not given from its environment
// variable, if that exists: PREFIX_PAUSE_AFTER for pause-after. Renamed has the
// old name of each flag that was renamed. Its variable counts if the present one
// is not set; ReadEnvironment calls told for it.
func ReadEnvironment(prefix string, flags *flag.FlagSet, renamed map[string]string, told func(old, now string)) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		name := variable(prefix, f.Name)
		value, ok := os.LookupEnv(name) //nolint:forbidigo // this is the place
		if old, was := renamed[f.Name]; was && !ok {
			if value, ok = os.LookupEnv(variable(prefix, old)); ok { //nolint:forbidigo // likewise
				told(variable(prefix, old), name)
			}
		}
		if !ok || given[f.Name] {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// variable returns the environment variable of a flag.
func variable(prefix, flag string) string {
	return prefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Duration is a time.Duration that a configuration writes as "15s" or "5m".
type Duration struct{ time.Duration }

// MarshalJSON writes the form that UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads what time.ParseDuration takes.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`a duration must be a string such as "15s": %w`, err)
	}
	return d.Set(s)
}

// Set implements [flag.Value].
func (d *Duration) Set(s string) (err error) {
	d.Duration, err = time.ParseDuration(s)
	return err
}
