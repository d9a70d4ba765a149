package history

import (
	"fmt"
	"iter"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

const (
	// PointsMax is how many steps an answer has at most: a day in minutes. The alignment
	// of the times may add one.
	PointsMax = 1440
	// pointsWanted is how many steps an answer has at most if the caller names no step.
	pointsWanted = 360
	// timeDefault is the time of an answer if the caller names none.
	timeDefault = time.Hour
)

// Query is what a caller asks for.
type Query struct {
	Series   []string // names; none are all
	From, To time.Time
	Step     time.Duration // a multiple of that of the records
	coarse   bool          // the detailed records do not reach back to From
}

// parse reads a query. It returns all mistakes together.
func parse(v url.Values, now time.Time) (q Query, err error) {
	var p doze.Problems
	q.From, q.To = api.MomentOf(v, "from", &p), api.MomentOf(v, "to", &p)
	if text := v.Get("step"); text != "" {
		if q.Step, err = doze.ParseDuration(text); err != nil {
			p.Add("step", "%v", err)
		}
	}
	for _, name := range strings.FieldsFunc(strings.Join(v["series"], ","), func(r rune) bool { return r == ',' }) {
		if !slices.Contains(Names(), name) {
			p.Add("series", "there is no series %q: choose of %s", api.Clip(name), strings.Join(Names(), ", "))
			break
		}
		q.Series = append(q.Series, name)
	}
	if err := p.Err(); err != nil {
		return q, err
	}
	return q.complete(now)
}

// complete fills in what the caller left out, and aligns the times with the steps.
func (q Query) complete(now time.Time) (Query, error) {
	var p doze.Problems
	if q.To.IsZero() || q.To.After(now) {
		q.To = now
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-timeDefault)
	}
	took := q.To.Sub(q.From)
	switch {
	case took <= 0:
		p.Add("from", "must be before to, and before now")
	case q.From.Before(now.Add(-CoarseTime)):
		p.Add("from", "is more than %d days ago: older records are not stored", CoarseTime/(24*time.Hour))
	}
	if err := p.Err(); err != nil {
		return q, err
	}
	resolution := DetailStep
	if q.From.Before(now.Add(-DetailTime)) {
		resolution, q.coarse = CoarseStep, true
	}
	if q.Step == 0 {
		q.Step = multiple(took, pointsWanted, resolution)
	}
	least := multiple(took, PointsMax, resolution)
	switch {
	case q.Step%resolution != 0:
		p.Add("step", "must be a multiple of %s: records of this time are that far apart", short(resolution))
	case q.Step < least:
		p.Add("step", "%s is too short: an answer has at most %d steps, so ask for step=%s or more, or for less time", short(q.Step), PointsMax, short(least))
	}
	q.From = q.From.Truncate(q.Step)
	q.To = q.To.Add(q.Step - 1).Truncate(q.Step)
	return q, p.Err()
}

// multiple is the smallest multiple of a resolution with which a time has at most so many
// steps.
func multiple(took time.Duration, points int, resolution time.Duration) time.Duration {
	least := took / time.Duration(points)
	return max(resolution, (least + resolution - 1).Truncate(resolution))
}

// short is a duration as [doze.ParseDuration] reads it.
func short(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// Read returns what was recorded. The query is complete.
func (h *History) Read(q Query) doze.History {
	points := int(q.To.Sub(q.From) / q.Step)
	out := doze.History{
		From: doze.Time{Time: q.From}, To: doze.Time{Time: q.To}, Step: int(q.Step / time.Second),
		Series: blank(q.Series, points),
	}
	source := h.detail
	if q.coarse {
		source = h.coarse
	}
	for point, values := range folded(source.between(q.From, q.To), q.From, q.Step) {
		plot(out.Series, q.Series, point, values)
	}
	return out
}

// folded makes steps of records, oldest first, with their numbers from 0.
func folded(records iter.Seq2[time.Time, []float64], from time.Time, step time.Duration) iter.Seq2[int, []float64] {
	return func(yield func(int, []float64) bool) {
		f, point := newFold(), 0
		for at, values := range records {
			if n := int(at.Sub(from) / step); n != point {
				if !f.empty() && !yield(point, f.values()) {
					return
				}
				f, point = newFold(), n
			}
			f.add(values)
		}
		if !f.empty() {
			yield(point, f.values())
		}
	}
}

// wanted reports whether a query asks for a name.
func wanted(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

// blank are the series of an answer, in the order of the table, without values.
func blank(names []string, points int) []doze.HistorySeries {
	all := []doze.HistorySeries{}
	for _, s := range table {
		for _, name := range s.names() {
			if !wanted(names, name) {
				continue
			}
			for _, label := range s.labels() {
				one := doze.HistorySeries{Name: name, Unit: s.unit, Values: make([]*float64, points)}
				if s.kind == latency && name == s.name {
					one.Unit = "" // how many there were
				}
				if s.label != "" {
					one.Labels = map[string]string{s.label: label}
				}
				all = append(all, one)
			}
		}
	}
	return all
}

// plot puts the columns of a step into the series that [blank] made.
func plot(out []doze.HistorySeries, names []string, point int, values []float64) {
	at := 0
	for _, s := range table {
		width := s.width()
		for _, name := range s.names() {
			if !wanted(names, name) {
				continue
			}
			for i := range s.labels() {
				v := s.value(name, values[at+i*width:at+(i+1)*width])
				if !math.IsNaN(v) {
					out[0].Values[point] = &v
				}
				out = out[1:]
			}
		}
		at += width * len(s.labels())
	}
}

// value is the number with a name out of the columns of a label.
func (s series) value(name string, columns []float64) float64 {
	if s.kind != latency {
		return columns[0]
	}
	for _, q := range quantiles {
		if name == s.name+q.suffix {
			return quantile(q.of, columns)
		}
	}
	var sum float64
	for _, n := range columns {
		sum += n
	}
	return sum
}
