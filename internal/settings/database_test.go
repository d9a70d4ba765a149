package settings

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// secretCase is a way to give a setting that may have the password hunter2.
type secretCase struct {
	args []string
	env  string
	want string // the setting, or a part of the error
	bad  bool
}

// load loads the settings of the case, with what it has for the environment in a variable.
// It reports whether they must be right. The password is in no error, and is never shown.
func (c secretCase) load(t *testing.T, variable string) (got Settings, ok bool) {
	t.Helper()
	if c.env != "" {
		t.Setenv(variable, c.env)
	}
	got, _, err := load(c.args)
	if err == nil {
		err = got.Validate()
	}
	if (err != nil) != c.bad || c.bad && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
		t.Errorf("%v", err)
	}
	var shown bytes.Buffer
	if err := json.NewEncoder(&shown).Encode(got.Shown()); err != nil || strings.Contains(shown.String(), "hunter2") {
		t.Errorf("%v, %s", err, &shown)
	}
	return got, !c.bad
}

func TestDatabaseSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "database")
	if err := os.WriteFile(file, []byte("postgres://u:hunter2@h/db\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]secretCase{
		"none":                 {},
		"flag":                 {args: []string{"--database", "postgres://u@h/db"}, want: "postgres://u@h/db"},
		"environment":          {env: "postgres://u:hunter2@h/db", want: "postgres://u:hunter2@h/db"},
		"file":                 {args: []string{"--database-file", file}, want: "postgres://u:hunter2@h/db"},
		"password in the flag": {args: []string{"--database", "postgres://u:hunter2@h/db"}, want: "--database-file", bad: true},
		"both":                 {args: []string{"--database-file", file}, env: "postgres://u@h/db", want: "give one of them", bad: true},
		"no such file":         {args: []string{"--database-file", file + "x"}, want: "no such file", bad: true},
		"empty file":           {args: []string{"--database-file", os.DevNull}, want: "nothing else", bad: true},
		"no address":           {args: []string{"--database", "mysql://h/db"}, want: "postgres://USER@HOST", bad: true},
		"odd address":          {env: "postgres://u:hunter2#@h/db", want: "postgres://USER@HOST", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := c.load(t, "DOZED_DATABASE"); ok && got.Database != c.want {
				t.Errorf("it is %q", got.Database)
			}
		})
	}
}
