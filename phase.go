package doze

import "slices"

// Phase is where a sandbox is in its life. It is finer than what the public
// API shows: [Phase.State] and [Phase.Status] project it.
type Phase uint8

const (
	Pending Phase = iota // recorded, no node yet
	Starting
	Running
	Suspending
	Standby
	Waking
	Disabling
	Disabled
	Archiving
	Archived
	Unarchiving
	Deleting
	Terminated
	Failed
	Uploading // the files of its image are awaited; a phase goes over the wire as its number, so later ones come last
	Building  // its image is being built
)

// lastPhase ends the table.
const lastPhase = Building

// Phases returns all phases.
func Phases() []Phase {
	all := make([]Phase, 0, lastPhase+1)
	for p := Pending; p <= lastPhase; p++ {
		all = append(all, p)
	}
	return all
}

// Trigger is something that happened to a sandbox.
type Trigger uint8

const (
	Placed    Trigger = iota // control chose a node
	Booted                   // the agent answered for the first time
	Idled                    // nobody used it for its idle time
	Suspended                // memory and disk are saved
	Called                   // a request came in
	Woken                    // the agent answered again
	Stayed                   // what was begun did not work; it is as it was
	Disable                  // spec.enabled became false
	Halted                   // asleep on disk, and not to be woken
	Enable                   // spec.enabled became true
	Redeploy                 // a change that needs a fresh machine
	Restored                 // a machine out of a snapshot took the place of the one before
	Pack                     // a caller wants its files kept and nothing else
	Packed                   // its files are in an archive, and nothing else is left
	Unpack                   // a caller wants it back
	Unpacked                 // it runs again, with its files
	Delete                   // a caller or a policy asked for its end
	Gone                     // nothing of it is left on the node
	Broke                    // the node gave up on it
	Offered                  // a caller may upload the files of its image
	Uploaded                 // the files are there
)

// Owner is the process that may apply a transition.
type Owner uint8

const (
	ByControl Owner = iota
	ByNode
)

// A Transition is one row of the life of a sandbox.
type Transition struct {
	From []Phase
	On   Trigger
	To   Phase
	By   Owner
}

var unfinished = []Phase{
	Pending, Starting, Running, Suspending, Standby, Waking, Disabling, Disabled, Archiving, Archived, Unarchiving, Failed,
	Uploading, Building,
}

// Transitions is the whole state machine. What is not a row cannot happen.
var Transitions = []Transition{
	{[]Phase{Pending, Building}, Placed, Starting, ByControl},
	{[]Phase{Starting}, Booted, Running, ByNode},

	// One that never ran, or that failed, waits for its image. Another address for the
	// upload begins anew.
	{[]Phase{Pending, Uploading, Building, Failed}, Offered, Uploading, ByControl},
	{[]Phase{Uploading}, Uploaded, Building, ByControl},

	{[]Phase{Running}, Idled, Suspending, ByNode},
	{[]Phase{Suspending}, Suspended, Standby, ByNode},
	{[]Phase{Suspending}, Stayed, Running, ByNode},
	{[]Phase{Standby}, Called, Waking, ByNode},
	{[]Phase{Waking}, Woken, Running, ByNode},
	{[]Phase{Waking}, Stayed, Standby, ByNode},

	{[]Phase{Running, Standby}, Disable, Disabling, ByControl},
	{[]Phase{Disabling}, Halted, Disabled, ByNode},
	{[]Phase{Disabled}, Enable, Standby, ByControl},
	{[]Phase{Starting, Running, Standby, Failed}, Redeploy, Starting, ByControl}, // starting: one that was cut short
	{[]Phase{Running, Standby, Failed}, Restored, Running, ByControl},

	// Control leads an archive to its end: it records with each step what the
	// archive is.
	{[]Phase{Running, Standby}, Pack, Archiving, ByControl},
	{[]Phase{Archiving}, Packed, Archived, ByControl},
	{[]Phase{Archiving}, Stayed, Running, ByControl},
	{[]Phase{Archived}, Unpack, Unarchiving, ByControl},
	{[]Phase{Unarchiving}, Unpacked, Running, ByControl},
	{[]Phase{Unarchiving}, Stayed, Archived, ByControl},

	{[]Phase{Pending, Starting, Running, Suspending, Standby, Waking, Disabling, Disabled, Archiving, Archived, Unarchiving}, Broke, Failed, ByNode},
	{[]Phase{Uploading, Building}, Broke, Failed, ByControl},
	{unfinished, Delete, Deleting, ByControl},
	{[]Phase{Deleting}, Gone, Terminated, ByNode},
}

// phases says how each phase looks from outside.
var phases = [...]struct {
	name   string
	status string // deployment status
	state  string // sandbox state; empty without memory
}{
	Pending:     {"pending", "DEPLOYING", ""},
	Starting:    {"starting", "DEPLOYING", ""},
	Running:     {"running", "DEPLOYED", "RUNNING"},
	Suspending:  {"suspending", "DEPLOYED", "RUNNING"},
	Standby:     {"standby", "DEPLOYED", "STANDBY"},
	Waking:      {"waking", "DEPLOYED", "STANDBY"},
	Disabling:   {"disabling", "DEACTIVATING", "STANDBY"},
	Disabled:    {"disabled", "DEACTIVATED", "STANDBY"},
	Archiving:   {"archiving", "ARCHIVING", "RUNNING"},
	Archived:    {"archived", "ARCHIVED", ""},
	Unarchiving: {"unarchiving", "UNARCHIVING", ""},
	Deleting:    {"deleting", "DELETING", ""},
	Terminated:  {"terminated", "TERMINATED", ""},
	Failed:      {"failed", "FAILED", ""},
	Uploading:   {"uploading", "UPLOADING", ""},
	Building:    {"building", "BUILDING", ""},
}

var triggers = [...]string{
	Placed: "placed", Booted: "booted", Idled: "idled", Suspended: "suspended",
	Called: "called", Woken: "woken", Stayed: "stayed", Disable: "disable", Halted: "halted",
	Enable: "enable", Redeploy: "redeploy", Restored: "restored", Pack: "pack", Packed: "packed",
	Unpack: "unpack", Unpacked: "unpacked", Delete: "delete", Gone: "gone", Broke: "broke",
	Offered: "offered", Uploaded: "uploaded",
}

func (p Phase) String() string   { return phases[p].name }
func (p Phase) Status() string   { return phases[p].status }
func (p Phase) State() string    { return phases[p].state }
func (t Trigger) String() string { return triggers[t] }

// Next returns the phase that follows from on t. A pair that is not in the
// table is a Conflict, because the caller acted on a sandbox that had moved on.
func Next(from Phase, on Trigger) (Phase, error) {
	for _, t := range Transitions {
		if t.On == on && slices.Contains(t.From, from) {
			return t.To, nil
		}
	}
	return from, Errorf(Conflict, "the sandbox is %s", from)
}

// ParsePhase is the inverse of [Phase.String].
func ParsePhase(name string) (Phase, error) {
	for p, row := range phases {
		if row.name == name {
			return Phase(p), nil
		}
	}
	return Pending, Errorf(Internal, "unknown phase %q", name)
}

// Asleep reports whether a sandbox in p has memory that a request can wake.
func (p Phase) Asleep() bool { return p == Standby || p == Waking }

// Ended reports whether nothing runs in p and nothing ever will again.
func (p Phase) Ended() bool { return p == Deleting || p == Terminated }
