package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/dozehq/doze"
)

const (
	// tailLines is how many lines of output a running step shows.
	tailLines = 6
	// drawEvery is how often the steps are drawn again on a terminal.
	drawEvery = 200 * time.Millisecond
	// silenceMost is how long a running step says nothing where nothing is drawn again. The
	// readers are people and logs of other programs, so it is not shorter.
	silenceMost = 5 * time.Second
	// warningPrefix begins a text about a mistake that does not end the build.
	warningPrefix = "warning: "
	// screenWidth and screenHeight are those of a terminal that does not say.
	screenWidth, screenHeight = 80, 24
)

// A buildView shows what happens in a build.
type buildView interface {
	show(e doze.BuildEvent) error
	close()
}

// buildView returns the one of a name of --progress.
func (a *app) buildView(progress string) buildView {
	switch {
	case progress == progressJSON:
		return rawView{a.out}
	case progress == progressAuto && a.watched():
		f, _ := a.err.(*os.File) // as watched says
		return newLiveView(a.err, func() (width, height int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 || height <= 0 {
				return screenWidth, screenHeight
			}
			return width, height
		})
	}
	return newPlainView(a.err)
}

// rawView prints events as the API gives them, one in a line.
type rawView struct{ w io.Writer }

func (v rawView) close() {}

func (v rawView) show(e doze.BuildEvent) error { return json.NewEncoder(v.w).Encode(e) }

// plainView prints lines, each with the number of its step.
type plainView struct {
	w    io.Writer
	past bool // it prints why a build failed: the command succeeds
	stop chan struct{}
	task sync.WaitGroup
	once sync.Once

	mu    sync.Mutex
	steps map[string]*plainStep // guarded by mu
	last  int                   // guarded by mu; the number of the last line's step
}

// plainStep is a step of a plain view.
type plainStep struct {
	number         int
	title          string
	runs           bool
	began          time.Time // by our clock
	said           time.Time // its last line, by our clock
	at             time.Time // the same by the clock of the log, for a build of the past
	current, total int64
}

// newPlainView returns a view that says every few seconds which steps run.
func newPlainView(w io.Writer) *plainView {
	v := pastView(w)
	v.past, v.stop = false, make(chan struct{})
	v.task.Go(v.run)
	return v
}

// pastView returns a view of a build that may be over.
func pastView(w io.Writer) *plainView {
	return &plainView{w: w, past: true, steps: map[string]*plainStep{}}
}

func (v *plainView) run() {
	tick := time.NewTicker(silenceMost / 5)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			v.mu.Lock()
			v.remindLocked(now)
			v.mu.Unlock()
		case <-v.stop:
			return
		}
	}
}

func (v *plainView) close() {
	v.once.Do(func() {
		if v.stop != nil {
			close(v.stop)
		}
		v.task.Wait()
	})
}

// remindLocked prints the running steps that said nothing for long. Preconditions: mu is held.
func (v *plainView) remindLocked(now time.Time) {
	steps := slices.SortedFunc(maps.Values(v.steps), func(a, b *plainStep) int { return a.number - b.number })
	for _, s := range steps {
		if s.runs && now.Sub(s.said) >= silenceMost {
			s.said = now
			_ = v.printLocked(s, fmt.Sprintf("%s%s %ds", s.title, transferred(s.current, s.total), now.Sub(s.began)/time.Second)) // the next event fails too
		}
	}
}

// printLocked prints a line of a step. Preconditions: mu is held.
func (v *plainView) printLocked(s *plainStep, text string) error {
	between := ""
	if v.last != 0 && v.last != s.number {
		between = "\n"
	}
	v.last = s.number
	return copyOut(v.w, fmt.Sprintf("%s#%d %s\n", between, s.number, text))
}

// stepKey tells steps apart.
func stepKey(e *doze.BuildEvent) string { return cmp.Or(e.Vertex, fmt.Sprint(e.Stage, e.Step, e.Name)) }

func (v *plainView) show(e doze.BuildEvent) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := printable(strings.TrimRight(e.Plain(), "\n"))
	if e.Status != "" && e.Failure != nil && !v.past {
		return nil // the error of the command says it
	}
	if e.Name == "" {
		if text == "" {
			return nil
		}
		return copyOut(v.w, text+"\n")
	}
	now := time.Now()
	key := stepKey(&e)
	s := v.steps[key]
	if s == nil {
		s = &plainStep{number: len(v.steps) + 1, began: now}
		v.steps[key] = s
	}
	if e.State != "" {
		s.runs = e.State == doze.StepStarted
	}
	if e.State == doze.StepStarted {
		s.title, s.began = text, now
	}
	if e.State == "" && (e.Current > 0 || e.Total > 0) {
		s.current, s.total = e.Current, e.Total
		if !v.past || e.At.Sub(s.at) < silenceMost { // or run says it
			return nil
		}
		text = s.title + transferred(e.Current, e.Total)
	}
	if text == "" {
		return nil
	}
	s.said, s.at = now, e.At.Time
	return v.printLocked(s, text)
}

// transferred says how far a transfer is, after the title of a step. A total of 0 is unknown.
func transferred(current, total int64) string {
	switch {
	case total > 0:
		return fmt.Sprintf(" %s / %s MB", megabytes(current), megabytes(total))
	case current > 0:
		return fmt.Sprintf(" %s MB", megabytes(current))
	}
	return ""
}

// liveStep is a step on a terminal.
type liveStep struct {
	key, title string
	began      time.Time
	state      string
	took       time.Duration
	tail       []string
	current    int64
	total      int64
}

// liveView draws the steps of a build again and again, as docker build does.
type liveView struct {
	w    io.Writer
	size func() (width, height int)
	stop chan struct{}
	task sync.WaitGroup
	once sync.Once

	mu    sync.Mutex
	steps []*liveStep // guarded by mu; those that are not printed for good
	note  string      // guarded by mu; the last word of the platform
	warns []string    // guarded by mu; warnings that are not printed yet
	lines int         // guarded by mu; that are drawn now
}

func newLiveView(w io.Writer, size func() (width, height int)) *liveView {
	v := &liveView{w: w, size: size, stop: make(chan struct{})}
	v.task.Go(v.run)
	return v
}

func (v *liveView) run() {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			v.mu.Lock()
			v.drawLocked(now)
			v.mu.Unlock()
		case <-v.stop:
			return
		}
	}
}

// close draws the steps for the last time.
func (v *liveView) close() {
	v.once.Do(func() {
		close(v.stop)
		v.task.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.note = ""
		for _, s := range v.steps {
			if s.state == "" {
				s.tail = nil
			}
		}
		v.drawLocked(time.Now())
	})
}

func (v *liveView) show(e doze.BuildEvent) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.Status != "" {
		return nil
	}
	if e.Name == "" {
		if strings.HasPrefix(e.Text, warningPrefix) { // it is for later, too
			v.warns = append(v.warns, e.Text)
		} else {
			v.note = e.Text
		}
		return nil
	}
	v.note = ""
	s := v.stepLocked(&e)
	switch {
	case e.State == doze.StepCached || e.State == doze.StepDone || e.State == doze.StepFailed || e.State == doze.StepCanceled:
		s.state, s.took = e.State, time.Duration(e.TookMs)*time.Millisecond
		if e.State != doze.StepFailed {
			s.tail = nil
		}
	case e.State == "" && (e.Total > 0 || e.Current > 0):
		s.current, s.total = e.Current, e.Total
	case e.State == "" && e.Text != "":
		s.tail = append(s.tail, e.Text)
		s.tail = s.tail[max(0, len(s.tail)-tailLines):]
	}
	return nil
}

// stepLocked is the step of an event. Preconditions: mu is held.
func (v *liveView) stepLocked(e *doze.BuildEvent) *liveStep {
	key := stepKey(e)
	if i := slices.IndexFunc(v.steps, func(s *liveStep) bool { return s.key == key }); i >= 0 {
		return v.steps[i]
	}
	title := e.Name
	if e.Step > 0 && e.Steps > 0 {
		title = fmt.Sprintf("[%s %d/%d] %s", e.Stage, e.Step, e.Steps, e.Name)
		title = strings.Replace(title, "[ ", "[", 1)
	}
	s := &liveStep{key: key, title: title, began: time.Now()}
	v.steps = append(v.steps, s)
	return s
}

// drawLocked draws the steps in the place of the last drawing. Those at the top that have ended
// are printed for good. Preconditions: mu is held.
func (v *liveView) drawLocked(now time.Time) {
	width, height := v.size()
	var out strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", v.lines)
	}
	line := func(text, right string) {
		out.WriteString("\r\x1b[K" + fitted(text, right, width) + "\n")
	}
	for _, text := range v.warns { // whole, in as many lines as it takes
		out.WriteString("\r\x1b[J" + printable(text) + "\n")
	}
	v.warns = nil
	done := 0
	for done < len(v.steps) && v.steps[done].state != "" {
		s := v.steps[done]
		line(s.head(), s.time(now))
		for _, text := range s.tail {
			line("    "+text, "")
		}
		done++
	}
	v.steps = v.steps[done:]
	var rest [][2]string
	for _, s := range v.steps {
		rest = append(rest, [2]string{s.head(), s.time(now)})
		if s.state == "" {
			for _, text := range s.tail {
				rest = append(rest, [2]string{"    " + text, ""})
			}
		}
	}
	if v.note != "" {
		rest = append(rest, [2]string{" => " + v.note, ""})
	}
	rest = rest[max(0, len(rest)-max(height-1, 1)):]
	for _, l := range rest {
		line(l[0], l[1])
	}
	out.WriteString("\x1b[J") // what is left of the drawing before
	v.lines = len(rest)
	_, _ = io.WriteString(v.w, out.String()) // nobody looks on any more
}

func (s *liveStep) head() string {
	text := " => "
	switch s.state {
	case doze.StepCached:
		text += "CACHED "
	case doze.StepFailed:
		text += "FAILED "
	case doze.StepCanceled:
		text += "CANCELED "
	}
	text += s.title
	if s.state == "" {
		text += transferred(s.current, s.total)
	}
	return text
}

func (s *liveStep) time(now time.Time) string {
	switch s.state {
	case doze.StepCached:
		return ""
	case "":
		return fmt.Sprintf("%.1fs", now.Sub(s.began).Seconds())
	}
	return fmt.Sprintf("%.1fs", s.took.Seconds())
}

// fitted is a line of at most a width, with a text at its right end.
func fitted(text, right string, width int) string {
	text = printable(strings.ReplaceAll(text, "\t", " "))
	room := max(width-1-utf8.RuneCountInString(right)-1, 1)
	n := utf8.RuneCountInString(text)
	if n > room {
		text = string([]rune(text)[:room-1]) + "…"
		n = room
	}
	if right == "" {
		return text
	}
	return text + strings.Repeat(" ", room-n+1) + right
}
