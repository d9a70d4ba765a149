package trace

import "github.com/dozehq/doze"

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
	Admit:    {"admit", "the edge finds the sandbox and checks credential and quotas; for a create, control checks and records the sandbox"},
	Settle:   {"settle", "a pause, a move to a lower tier or a snapshot that is under way ends"},
	Image:    {"image", "the node looks up the image, and pulls it if it has to"},
	Commit:   {"commit", "the node writes its record of the sandbox"},
	Turn:     {"turn", "the wake waits for its turn to change the machine, or while too many come from disk at once; the create waits while too many machines are made at once"},
	Find:     {"find", "the node looks for a machine that it could not adopt when it started"},
	Memory:   {"memory", "the node reserves memory, and may move other sandboxes to disk for it"},
	Network:  {"network", "the sandbox gets an address, and its network rules take effect"},
	Volumes:  {"volumes", "the node attaches volumes"},
	Share:    {"share", "the new machine gets the files of a snapshot"},
	Manifest: {"manifest", "the driver reads the manifest of the checkpoint"},
	Verify:   {"verify", "the driver compares the checkpoint with its checksums, unless the node vouches for it"},
	Retire:   {"retire", "the checkpoint is marked as used up"},
	Prepare:  {"prepare", "the launcher creates a process, unless one is ready"},
	Launch:   {"launch", "the launcher boots, resumes or restores the machine"},
	Process:  {"process", "the launcher makes the processes and the cgroup of the machine"},
	Link:     {"link", "the launcher connects the machine to its network"},
	Engine:   {"engine", "the engine starts or resumes the guest"},
	Agent:    {"agent", "the agent of a new sandbox answers, and gets its identity"},
	Publish:  {"publish", "control records that the sandbox runs, and makes its route"},
	Connect:  {"connect", "the node connects to the agent or the port"},
	Answer:   {"answer", "the sandbox gets the request, and sends the first byte of its answer"},
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
	FromPool     = "spare" // a machine that was started ahead
	FromImage    = "image" // it boots
	FromSnapshot = "snapshot"
)

// Sources are the values of From for creates.
var Sources = []string{FromPool, FromImage, FromSnapshot}
