package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// configMax bounds a configuration file.
const configMax = 1 << 20

// ReadConfig fills config from a JSON file. What the file does not mention
// stays as it is; a key that config does not have is an error, because it is a
// setting that somebody believes to have made.
func ReadConfig(name string, config any) error {
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

// ReadEnvironment sets every flag that was not given from its environment
// variable, if that exists: PREFIX_PAUSE_AFTER for pause-after.
func ReadEnvironment(prefix string, flags *flag.FlagSet) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		name := prefix + "_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name) //nolint:forbidigo // this is the place
		if !ok || given[f.Name] {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(errs...)
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
