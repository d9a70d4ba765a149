package trace

import "doze"

// A Stage is one part of a wake or of a create.
type Stage uint8

// The stages, roughly in the order in which they happen. The table says what
// each of them is.
const (
	Admit Stage = iota
	Settle
	Image
	Commit
	Turn
	Find
	Memory
	Network
	Volumes
	Share
	Manifest
	Verify
	Retire
	Prepare
	Launch
	Process
	Link
	Engine
	Agent
	Publish
	Connect
	Answer

	count // of all stages
)

// stages is the table: how a stage is called, and what it is. The documentation
// of the API has the same rows.
var stages = [count]struct{ name, is string }{
	Admit:    {"admit", "the edge finds the sandbox and checks credential and quotas; control checks and records a new sandbox"},
	Settle:   {"settle", "a change that is under way ends: a pause, a move to a lower tier, a snapshot"},
	Image:    {"image", "the image is looked up; if the node does not have it, it is pulled"},
	Commit:   {"commit", "the node writes its record of the sandbox"},
	Turn:     {"turn", "the wake waits for its turn to change the machine; the create waits while too many machines are made at once"},
	Find:     {"find", "the node looks for a machine that it could not adopt when it started"},
	Memory:   {"memory", "the node promises memory, and may move others to disk for it"},
	Network:  {"network", "the sandbox gets an address, and its network rules are put in force"},
	Volumes:  {"volumes", "volumes are attached"},
	Share:    {"share", "the files of a template or snapshot are shared with the new machine"},
	Manifest: {"manifest", "the manifest of the checkpoint is read"},
	Verify:   {"verify", "the checkpoint is compared with its checksums, unless the node vouches for it"},
	Retire:   {"retire", "the checkpoint stops to count"},
	Prepare:  {"prepare", "the launcher is asked for a process, unless one waits"},
	Launch:   {"launch", "the launcher is asked to boot, resume or restore the machine"},
	Process:  {"process", "the launcher makes the processes and cgroup of the machine"},
	Link:     {"link", "the launcher connects the machine to its network"},
	Engine:   {"engine", "the engine runs the guest: from here on it has its first instruction"},
	Agent:    {"agent", "the agent of a new sandbox answers, and learns whose it is"},
	Publish:  {"publish", "control records that the sandbox runs, and makes its route"},
	Connect:  {"connect", "the connection to the agent or the port is made"},
	Answer:   {"answer", "the request is sent, and the first byte of the answer comes"},
}

// String returns the name of a stage.
func (s Stage) String() string { return stages[s].name }

// Stages returns the names of all stages.
func Stages() []string {
	names := make([]string, 0, count)
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// parse returns the stage of a name.
func parse(name string) (Stage, bool) {
	for s, row := range stages {
		if row.name == name {
			return Stage(s), true
		}
	}
	return 0, false
}

// Kind is what is traced.
type Kind string

// The kinds.
const (
	Wake   Kind = doze.TraceWake
	Create Kind = doze.TraceCreate
)

// What the machine of a create is made of.
const (
	FromSpare    = "spare"    // a machine that was started ahead
	FromTemplate = "template" // a copy of one like it
	FromImage    = "image"    // it boots
	FromSnapshot = "snapshot"
)

// Sources are the values of From for creates.
var Sources = []string{FromSpare, FromTemplate, FromImage, FromSnapshot}
