package doze_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

func TestCron(t *testing.T) {
	t.Parallel()
	const form = "2006-01-02 15:04:05"
	for expression, tt := range map[string]struct{ after, want string }{
		"* * * * *":           {"2026-01-31 23:59:59", "2026-02-01 00:00:00"},
		"0 8 * * 1-5":         {"2026-01-02 08:00:00", "2026-01-05 08:00:00"}, // a Friday
		"*/15 * * * *":        {"2026-01-01 00:15:00", "2026-01-01 00:30:00"},
		"5/20 * * * *":        {"2026-01-01 00:06:00", "2026-01-01 00:25:00"},
		"0,30 9-11/2 * * *":   {"2026-01-01 09:30:00", "2026-01-01 11:00:00"},
		"0 0 29 2 *":          {"2096-03-01 00:00:00", "2104-02-29 00:00:00"}, // 2100 is no leap year
		"0 0 29 2 */7":        {"2088-02-29 00:00:00", "2128-02-29 00:00:00"}, // a Sunday
		"0 0 31 * *":          {"2026-01-31 00:00:00", "2026-03-31 00:00:00"},
		"0 0 13 * fri":        {"2026-01-01 00:00:00", "2026-01-02 00:00:00"}, // either
		"0 0 1-7 * */7":       {"2026-01-05 00:00:00", "2026-02-01 00:00:00"}, // both: the first Sunday
		"0 0 * * 7":           {"2026-01-01 00:00:00", "2026-01-04 00:00:00"},
		"0 0 * * SUN":         {"2026-01-01 00:00:00", "2026-01-04 00:00:00"},
		"0 0 * Mar,jun *":     {"2026-04-01 00:00:00", "2026-06-01 00:00:00"},
		"59 23 31 12 *":       {"2026-12-31 23:59:00", "2027-12-31 23:59:00"},
		" 1  2\t3 4 * ":       {"2026-01-01 00:00:00", "2026-04-03 02:01:00"},
		"0/999999999 * * * *": {"2026-01-01 00:00:00", "2026-01-01 01:00:00"},
	} {
		c, err := doze.ParseCron(expression)
		if err != nil {
			t.Errorf("%q: %v", expression, err)
			continue
		}
		after, err := time.Parse(form, tt.after)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Next(after).Format(form); got != tt.want {
			t.Errorf("%q after %s: %s, want %s", expression, tt.after, got, tt.want)
		}
	}
}

func TestCronMistakes(t *testing.T) {
	t.Parallel()
	for expression, says := range map[string]string{
		"":                               "five fields",
		"* * * *":                        "five fields",
		"* * * * * *":                    "five fields",
		"@daily":                         "five fields",
		strings.Repeat("1,", 300) + "1":  "five fields",
		"60 * * * *":                     "minute",
		"* 24 * * *":                     "hour",
		"* * 0 * *":                      "day of the month",
		"* * * 13 *":                     "month",
		"* * * * 8":                      "day of the week",
		"*/0 * * * *":                    "minute",
		"*/-1 * * * *":                   "minute",
		"*/+1 * * * *":                   "minute",
		"5-1 * * * *":                    "minute",
		"+5 * * * *":                     "minute",
		", * * * *":                      "minute",
		"1- * * * *":                     "minute",
		"* * * jam *":                    "month",
		"0 0 31 2 *":                     "never",
		"0 0 31 4,6,9,11 *":              "never",
		"99999999999999999999 * * * *":   "minute",
		"*/99999999999999999999 * * * *": "minute",
	} {
		if _, err := doze.ParseCron(expression); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want one of %q", expression, err, says)
		}
	}
}

// FuzzCron wants an end, and minutes that go on.
func FuzzCron(f *testing.F) {
	f.Add("*/5 1-3,7 29 2 mon")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := doze.ParseCron(s)
		if err != nil {
			return
		}
		at := time.Date(2026, 1, 1, 0, 0, 30, 0, time.UTC)
		for range 3 {
			next := c.Next(at)
			if !next.After(at) || next.Second() != 0 {
				t.Fatalf("%q: %v comes after %v", s, next, at)
			}
			at = next
		}
	})
}
