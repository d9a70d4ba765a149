package builder

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/fleet"
)

// TestDoing: what the platform does says every second how far it is, and what takes no time is
// not in the log.
func TestDoing(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		quiet, pause time.Duration
		parts        int
		err          error
		want         []string
	}{
		"a transfer": {0, 1500 * time.Millisecond, 3, nil, []string{"started", "1 bytes", "2 bytes", "3 bytes", "done 4.5s"}},
		"a failure":  {0, time.Minute, 1, io.ErrUnexpectedEOF, []string{"started", "1 bytes", "failed 1m0s"}},
		"short":      {quietMost, time.Second, 1, nil, nil},
		"long":       {quietMost, 3 * time.Second, 2, nil, []string{"started", "1 bytes", "2 bytes", "done 6s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []string
			err := doingLong(c.quiet, "work", func(e fleet.BuildEvent) {
				switch {
				case e.Name != "work":
					t.Errorf("got %+v", e)
				case e.Progress != nil:
					got = append(got, fmt.Sprint(e.Progress.Current, " bytes"))
				default:
					got = append(got, strings.TrimSuffix(e.State+" "+e.Took.String(), " 0s"))
				}
			}, func(w *task) error {
				for range c.parts {
					_, _ = io.Copy(io.Discard, w.counts(strings.NewReader("x")))
					time.Sleep(c.pause)
				}
				return c.err
			})
			if !errors.Is(err, c.err) {
				t.Error(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", title, diff)
			}
		})
	}
}
