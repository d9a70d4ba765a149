package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/daemon"
)

// TestTable: each field is a row, and each row says what people need.
func TestTable(t *testing.T) {
	t.Parallel()
	var s Settings
	rows, flags := map[any]row{}, map[string]bool{}
	for _, r := range s.rows() {
		if _, twice := rows[r.field]; twice || flags[r.flag] {
			t.Errorf("--%s is there twice", r.flag)
		}
		rows[r.field], flags[r.flag] = r, true
	}
	form, value := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`), regexp.MustCompile("`[^`]+`")
	for i, v := 0, reflect.ValueOf(&s).Elem(); i < v.NumField(); i++ {
		field := v.Type().Field(i)
		r, ok := rows[v.Field(i).Addr().Interface()]
		if !ok {
			t.Errorf("%s has no row in the table", field.Name)
			continue
		}
		if field.Tag.Get("json") == "" {
			t.Errorf("%s has no name in a file", field.Name)
		}
		if !form.MatchString(r.flag) {
			t.Errorf("%s: --%s is no name of a flag", field.Name, r.flag)
		}
		if _, yes := r.field.(*bool); r.text == "" || !yes && !value.MatchString(r.text) {
			t.Errorf("--%s: the help names no value: %q", r.flag, r.text)
		}
		delete(rows, r.field)
	}
	if len(rows) > 0 {
		t.Errorf("rows of no field: %v", rows)
	}
}

// TestEachSettingIsInTheEnvironment.
func TestEachSettingIsInTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "database")
	if err := os.WriteFile(file, []byte("postgres://h/db"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(t.TempDir(), "proxy")
	if err := os.WriteFile(proxy, []byte("http://proxy.test:3128"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range new(Settings).rows() {
		t.Run(r.flag, func(t *testing.T) {
			var text string
			switch r.field.(type) {
			case *string:
				text = "/text"
			case *bool:
				text = "true"
			case *int, *int64, *float64:
				text = "77"
			case *daemon.Duration:
				text = "1h17m0s"
			case *[]string:
				text = "a,b"
			default:
				t.Fatalf("Bind makes no flag of a %T", r.field)
			}
			if r.flag == "database-file" {
				text = file
			}
			if r.flag == "upstream-proxy-file" {
				text = proxy
			}
			t.Setenv("DOZED_"+strings.ToUpper(strings.ReplaceAll(r.flag, "-", "_")), text)
			s, _, err := load(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, now := range s.rows() {
				if got := shown(now.field); now.flag == r.flag && got != text {
					t.Errorf("it is %q", got)
				}
			}
		})
	}
}

// shown is the value of a field as people give it.
func shown(field any) string {
	if list, ok := field.(*[]string); ok {
		return strings.Join(*list, ",")
	}
	return fmt.Sprint(reflect.ValueOf(field).Elem().Interface())
}

// TestOperationsPage names the settings that an operator decides about first.
func TestOperationsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{
		"acme", "acme-email", "checkpoint-every", "data", "database", "database-file", "domain", "drives", "drives-credentials", "egress",
		"egress-interface", "egress-pool", "http-listen", "listen", "logs-retention", "logs-workspace-mb", "on-crash", "otlp-endpoint", "public-url", "tls-cert", "tls-key", "upstream-no-proxy", "upstream-proxy", "upstream-proxy-file", "upstream-resolves",
	} {
		if !regexp.MustCompile(`--` + flag + `([^a-z-]|$)`).Match(page) {
			t.Errorf("docs/operations.md does not name --%s", flag)
		}
	}
}
