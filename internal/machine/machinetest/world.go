package machinetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Port is where the guest's program answers.
const Port = 8080

// World is what the guest's program can do and see in its machine. The program
// in directory guest does it for real, the [Fake] as if.
type World interface {
	// Count returns a number that grows about every millisecond in which the
	// machine runs.
	Count() int64
	// Alloc fills so much more memory with a pattern.
	Alloc(megabytes int) error
	// Change writes to so many megabytes of it, from a place on.
	Change(from, megabytes int) error
	// Sum returns a checksum of what Alloc filled.
	Sum() uint32
	// Uptime is monotonic.
	Uptime() time.Duration
	// Random returns bytes of the kernel's source, in hex.
	Random() string
	WriteFile(name, text string) error
	ReadFile(name string) (string, error)
	Env() []string
	Hostname() (string, error)
	// Spawn starts child processes, each with a count of its own.
	Spawn(n int) error
	// Children returns the counts by process id.
	Children() map[int]int64
	// Reap ends all child processes and waits for that.
	Reap()
	// Timer starts a timer.
	Timer(after time.Duration)
	// Fired returns how many timers have fired.
	Fired() int
	// Hold writes text to a new file, unlinks it and keeps it open.
	Hold(text string) error
	// Held reads that file.
	Held() (string, error)
	// Eat starts a child process that allocates so much memory, and returns
	// how it ended.
	Eat(megabytes int) (string, error)
	// Spin keeps so many processors busy.
	Spin(threads int, d time.Duration)
	// Print writes to the standard streams.
	Print(text string)
	// Exit ends the first process.
	Exit()
}

// Clock is the answer of /time.
type Clock struct {
	Wall   time.Time     `json:"wall"`
	Uptime time.Duration `json:"uptime"`
}

// calls is the program's whole interface. Parameters are in the query, answers
// are JSON.
var calls = map[string]func(World, url.Values) (any, error){
	"/count":    func(w World, _ url.Values) (any, error) { return w.Count(), nil },
	"/alloc":    func(w World, q url.Values) (any, error) { return nil, w.Alloc(Number(q, "mb")) },
	"/change":   func(w World, q url.Values) (any, error) { return nil, w.Change(Number(q, "from"), Number(q, "mb")) },
	"/sum":      func(w World, _ url.Values) (any, error) { return w.Sum(), nil },
	"/time":     func(w World, _ url.Values) (any, error) { return Clock{time.Now().Round(0), w.Uptime()}, nil },
	"/random":   func(w World, _ url.Values) (any, error) { return w.Random(), nil },
	"/write":    func(w World, q url.Values) (any, error) { return nil, w.WriteFile(q.Get("name"), q.Get("text")) },
	"/read":     func(w World, q url.Values) (any, error) { return w.ReadFile(q.Get("name")) },
	"/env":      func(w World, _ url.Values) (any, error) { return w.Env(), nil },
	"/hostname": func(w World, _ url.Values) (any, error) { return w.Hostname() },
	"/spawn":    func(w World, q url.Values) (any, error) { return nil, w.Spawn(Number(q, "n")) },
	"/children": func(w World, _ url.Values) (any, error) { return w.Children(), nil },
	"/reap":     func(w World, _ url.Values) (any, error) { w.Reap(); return nil, nil },
	"/timer":    func(w World, q url.Values) (any, error) { w.Timer(millis(q)); return nil, nil },
	"/fired":    func(w World, _ url.Values) (any, error) { return w.Fired(), nil },
	"/hold":     func(w World, q url.Values) (any, error) { return nil, w.Hold(q.Get("text")) },
	"/held":     func(w World, _ url.Values) (any, error) { return w.Held() },
	"/eat":      func(w World, q url.Values) (any, error) { return w.Eat(Number(q, "mb")) },
	"/spin":     func(w World, q url.Values) (any, error) { w.Spin(Number(q, "n"), millis(q)); return nil, nil },
	"/print":    func(w World, q url.Values) (any, error) { w.Print(q.Get("text")); return nil, nil },
	"/blob":     func(_ World, q url.Values) (any, error) { return strings.Repeat("doze", Number(q, "kb")<<8), nil },
	"/exit":     func(w World, _ url.Values) (any, error) { w.Exit(); return nil, nil },
}

// Handler serves the guest's program.
func Handler(w World) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		call, ok := calls[r.URL.Path]
		if !ok {
			http.NotFound(rw, r)
			return
		}
		out, err := call(w, r.URL.Query())
		Reply(rw, out, err)
	})
}

// Reply answers a call to a guest in JSON, with what came of it.
func Reply(rw http.ResponseWriter, out any, err error) {
	if err != nil {
		rw.WriteHeader(http.StatusInternalServerError)
		out = err.Error()
	}
	_ = json.NewEncoder(rw).Encode(out) // the suite notices
}

// Number is a parameter of such a call.
func Number(q url.Values, name string) int {
	n, _ := strconv.Atoi(q.Get(name)) // the suite sends numbers
	return n
}

func millis(q url.Values) time.Duration {
	return time.Duration(Number(q, "ms")) * time.Millisecond
}
