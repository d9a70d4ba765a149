package builder

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/fleet"
)

const (
	// progressEvery is how often the platform tells how far it is with something.
	progressEvery = time.Second
	// quietMost is how long something may take that is most often done at once, before the log
	// has it.
	quietMost = 2 * time.Second
)

// A task is something that the platform does for a build.
type task struct {
	bytes atomic.Int64 // that have passed
}

// counts returns a reader of r whose bytes are the progress of the task.
func (t *task) counts(r io.Reader) io.Reader { return counter{r, t} }

type counter struct {
	io.Reader

	t *task
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.t.bytes.Add(int64(n))
	return n, err
}

// doing tells of something that the platform does for a build, and runs it.
func doing(name string, emit func(fleet.BuildEvent), do func(*task) error) error {
	return doingLong(0, name, emit, do)
}

// doingLong is doing for something that the log has only if it takes longer than quiet.
func doingLong(quiet time.Duration, name string, emit func(fleet.BuildEvent), do func(*task) error) error {
	t, begin := new(task), time.Now()
	tell := func(e fleet.BuildEvent) {
		e.Name, e.Vertex = name, name
		emit(e)
	}
	told := quiet <= 0
	if told {
		tell(fleet.BuildEvent{At: begin, State: fleet.BuildStarted})
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last := int64(0)
		timer := time.NewTimer(max(quiet, progressEvery))
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			if !told {
				told = true
				tell(fleet.BuildEvent{At: begin, State: fleet.BuildStarted})
			}
			if n := t.bytes.Load(); n != last {
				last = n
				tell(fleet.BuildEvent{At: time.Now(), Progress: &fleet.BuildProgress{Current: n}})
			}
			timer.Reset(progressEvery)
		}
	}()
	err := do(t)
	close(stop)
	<-ended
	if !told {
		return err
	}
	state := fleet.BuildDone
	if err != nil {
		state = fleet.BuildError
	}
	tell(fleet.BuildEvent{At: time.Now(), State: state, Took: time.Since(begin)})
	return err
}
