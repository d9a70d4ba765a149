package settings

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/daemon"
)

// TestRenames: each old name sets what the present one sets, with a notice.
func TestRenames(t *testing.T) {
	for _, r := range renames {
		t.Run(r.oldFlag, func(t *testing.T) {
			value, raw := "77", "77"
			switch field(t, r).(type) {
			case *daemon.Duration:
				value, raw = "77h0m0s", `"77h0m0s"`
			case *[]string: // the old name had one
				raw = `"77"`
			}
			variable := func(name string) string { return "DOZED_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
			t.Run("argument", func(t *testing.T) {
				obeyed(t, r, value, "--"+r.oldFlag, "--"+r.oldFlag, value)
				obeyed(t, r, value, "--"+r.oldFlag, "-"+r.oldFlag+"="+value)
				obeyed(t, r, value, "", "--"+r.flag, value)
			})
			t.Run("environment", func(t *testing.T) {
				t.Setenv(variable(r.oldFlag), value)
				obeyed(t, r, value, variable(r.oldFlag))
				t.Setenv(variable(r.flag), value)
				obeyed(t, r, value, "")
			})
			t.Run("file", func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "config.json")
				write(t, file, `{"workspace":"eu","`+r.oldKey+`":`+raw+`}`)
				obeyed(t, r, value, r.oldKey, "--config", file)
				write(t, file, `{"`+r.key+`":`+raw+`,"`+r.oldKey+`":`+raw+`}`)
				if _, err := loadWith(flag.NewFlagSet("test", flag.ContinueOnError), []string{"--config", file}, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "the same setting") {
					t.Errorf("both names in one file: %v", err)
				}
			})
		})
	}
}

// TestRenamesAreOfSettings: a present name exists, and an old one does not.
func TestRenamesAreOfSettings(t *testing.T) {
	t.Parallel()
	var known map[string]any
	if raw, err := json.Marshal(Defaults()); err != nil || json.Unmarshal(raw, &known) != nil {
		t.Fatal(err)
	}
	for _, r := range renames {
		field(t, r)
		if _, ok := known[r.key]; !ok {
			t.Errorf("no setting has the key %s", r.key)
		}
		if _, ok := known[r.oldKey]; ok {
			t.Errorf("%s is still the key of a setting", r.oldKey)
		}
	}
}

func TestArgumentsThatAreNoFlags(t *testing.T) {
	t.Parallel()
	var notices bytes.Buffer
	args := []string{"spares", "---spares", "--", "--spares"}
	if got := currentFlags(args, &notices); !reflect.DeepEqual(got, args) || notices.Len() > 0 {
		t.Errorf("%q became %q, %s", args, got, &notices)
	}
}

// obeyed loads settings, and wants the value in the field, and a notice of a name.
func obeyed(t *testing.T, r rename, value, old string, args ...string) {
	t.Helper()
	var notices bytes.Buffer
	s, err := loadWith(flag.NewFlagSet("test", flag.ContinueOnError), args, &notices)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range s.rows() {
		if got := shown(row.field); row.flag == r.flag && got != value {
			t.Errorf("%q: --%s is %s, want %s", args, r.flag, got, value)
		}
	}
	if old == "" && notices.Len() > 0 || old != "" && (!strings.Contains(notices.String(), old+" is called ") || strings.Count(notices.String(), "\n") != 1) {
		t.Errorf("%q: the notice is %q", args, &notices)
	}
}

// field returns the field of a setting that was renamed.
func field(t *testing.T, r rename) any {
	t.Helper()
	for _, row := range new(Settings).rows() {
		if row.flag == r.flag {
			return row.field
		}
		if row.flag == r.oldFlag {
			t.Fatalf("--%s is still a flag", r.oldFlag)
		}
	}
	t.Fatalf("there is no flag --%s", r.flag)
	return nil
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
