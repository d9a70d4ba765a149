package doze

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cron says at which minutes something happens, in UTC: minute, hour, day of
// the month, month and day of the week, as in crontab(5).
type Cron struct {
	minute, hour, day, month, weekday uint64 // one bit for each value
	// eitherDay says that one of the two kinds of days is enough: neither of
	// their fields begins with a star.
	eitherDay bool
}

// cronFields are the fields of an expression, in order.
var cronFields = [...]struct {
	name        string
	least, most int
	names       []string // of the values, from least on
}{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of the week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

const (
	// cronMax bounds an expression: the longest list that makes sense, of all
	// minutes, has 170 characters.
	cronMax = 512
	// cronYears is how far we look for the next minute. What is rarest, a 29th
	// of February that is one day of the week, comes at least every 40 years.
	cronYears = 41
)

// ParseCron reads an expression of five fields. One of which no minute ever
// comes, such as that of the 31st of February, is an error too.
func ParseCron(s string) (c Cron, err error) {
	fields := strings.Fields(s)
	if len(s) > cronMax || len(fields) != len(cronFields) {
		return c, fmt.Errorf("%q is not a cron expression of five fields like 0 8 * * 1-5", clip(s))
	}
	for i, into := range []*uint64{&c.minute, &c.hour, &c.day, &c.month, &c.weekday} {
		if *into, err = cronField(i, fields[i]); err != nil {
			return c, err
		}
	}
	const sunday, sundayToo = 1 << 0, 1 << 7
	if c.weekday&sundayToo != 0 {
		c.weekday |= sunday
	}
	c.eitherDay = fields[2][0] != '*' && fields[4][0] != '*'
	if c.Next(time.Unix(0, 0)).IsZero() {
		return c, fmt.Errorf("%q is a cron expression of a day that never comes", clip(s))
	}
	return c, nil
}

// cronField reads the field i: a list of values, ranges and steps.
func cronField(i int, text string) (bits uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(part, "/")
		by := 1
		if stepped {
			if by, err = strconv.Atoi(step); err != nil || by < 1 || strings.HasPrefix(step, "+") {
				return 0, cronMistake(i, part)
			}
		}
		f := cronFields[i]
		from, to := f.least, f.most
		if span != "*" {
			first, last, ranged := strings.Cut(span, "-")
			var ok1, ok2 bool
			from, ok1 = cronValue(i, first)
			if to, ok2 = from, true; ranged {
				to, ok2 = cronValue(i, last)
			} else if stepped {
				to = f.most
			}
			if !ok1 || !ok2 || from > to {
				return 0, cronMistake(i, part)
			}
		}
		for v := from; v <= to; v += min(by, f.most+1) {
			bits |= 1 << v
		}
	}
	return bits, nil
}

// cronValue reads one value of the field i, a number or a name.
func cronValue(i int, text string) (int, bool) {
	f := cronFields[i]
	if at := slices.Index(f.names, strings.ToLower(text)); at >= 0 {
		return f.least + at, true
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), err == nil && int(n) >= f.least && int(n) <= f.most
}

func cronMistake(i int, part string) error {
	f := cronFields[i]
	return fmt.Errorf("has %q as its %s; it must be *, or values from %d to %d, as in 1,5-9 or */2", clip(part), f.name, f.least, f.most)
}

// Next returns the first minute after t. It is zero for the zero Cron.
func (c Cron) Next(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Minute).Add(time.Minute)
	for end := t.AddDate(cronYears, 0, 0); t.Before(end); {
		year, month, day := t.Date()
		switch {
		case c.month&(1<<int(month)) == 0:
			t = time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
		case !c.onDay(day, t.Weekday()):
			t = time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
		case c.hour&(1<<t.Hour()) == 0:
			t = t.Truncate(time.Hour).Add(time.Hour)
		case c.minute&(1<<t.Minute()) == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

func (c Cron) onDay(day int, weekday time.Weekday) bool {
	ofMonth, ofWeek := c.day&(1<<day) != 0, c.weekday&(1<<int(weekday)) != 0
	if c.eitherDay {
		return ofMonth || ofWeek
	}
	return ofMonth && ofWeek
}
