package planetest

import (
	"context"
	"maps"

	"github.com/dozehq/doze/internal/fleet"
)

// logName is what a log is known by.
type logName struct{ workspace, name string }

// Write has lines in the log of a sandbox, as if its processes had written them.
func (n *Node) Write(workspace, name string, lines ...fleet.LogLine) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.logs == nil {
		n.logs = map[logName][]fleet.LogLine{}
	}
	of := logName{workspace, name}
	n.logs[of] = append(n.logs[of], lines...)
}

// Logs returns what was written, and the events of what has ended.
func (n *Node) Logs(_ context.Context, q fleet.LogQuery) (fleet.LogPage, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["logs"]; err != nil {
		return fleet.LogPage{}, err
	}
	var lines []fleet.LogLine
	for _, l := range n.logs[logName{q.Workspace, q.Name}] {
		if q.Takes(l) {
			lines = append(lines, l)
		}
	}
	return q.Page(lines, nil), nil
}

func (n *Node) EndLogs(_ context.Context, all []fleet.EndedLog) error {
	for _, ended := range all {
		for i := range ended.Events {
			ended.Events[i].Origin = fleet.EventOrigin(ended.Machine)
		}
		n.Write(ended.Workspace, ended.Name, ended.Events...)
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	return n.fail["logs"]
}

func (n *Node) DropLogs(_ context.Context, workspace string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if err := n.fail["logs"]; err != nil {
		return err
	}
	maps.DeleteFunc(n.logs, func(of logName, _ []fleet.LogLine) bool { return of.workspace == workspace })
	return nil
}
