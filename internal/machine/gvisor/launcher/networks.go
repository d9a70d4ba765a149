package launcher

import (
	"context"
	"errors"
	"maps"
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/dozehq/doze"
)

// A checkpoint does not carry the network namespaces that processes of a machine have
// made. Links, addresses and rules in them are gone after a restore. If there is a TCP
// socket in one of them, the restore never ends. So the engine's process knows which
// there are, and tells the agent, which is asked before each sleep. As long as there is
// one, the engine refuses to be saved, since one may be made after the agent has
// answered.

// networks are the network namespaces that processes of a machine have made.
type networks struct {
	mu     sync.Mutex
	made   map[*inet.Namespace]struct{} // guarded by mu; some may be gone
	barred bool                         // guarded by mu; the bar is there
}

// WatchNetworks makes the engine's process know the network namespaces that are
// made in its machine. It is called before gVisor's own main.
func WatchNetworks() {
	n := &networks{made: map[*inet.Namespace]struct{}{}}
	wrap(map[string]wrapper{"unshare": n.unshare, "clone": n.clone, "clone3": n.clone, "prctl": n.prctl})
}

func (n *networks) unshare(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		v, control, err := call(t, sysno, args)
		n.note(t.NetworkNamespace())
		return v, control, err
	}
}

func (n *networks) clone(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		tid, control, err := call(t, sysno, args)
		if err != nil {
			return tid, control, err
		}
		if child := t.PIDNamespace().TaskWithID(kernel.ThreadID(tid)); child != nil { //nolint:gosec // G115: it was one
			if own := child.GetNetworkNamespace(); own != nil {
				n.note(own)
				own.DecRef(t)
			}
		}
		return tid, control, nil
	}
}

// prctl has one option more, see [doze.CountNetworks].
func (n *networks) prctl(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[0].Int() == doze.CountNetworks {
			return uintptr(n.count()), nil, nil
		}
		return call(t, sysno, args)
	}
}

// note takes note of the namespace of a process. That of the machine itself is
// none of those.
func (n *networks) note(own *inet.Namespace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !own.IsRoot() {
		n.made[own] = struct{}{}
	}
	n.settle()
}

// count returns how many are in use: by a process, a descriptor, a mount or a
// socket.
func (n *networks) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settle()
	return len(n.made)
}

// settle forgets those that nobody uses, and puts the bar there or takes it away. It is not
// called when the last user goes, but when a process starts or somebody asks.
// Preconditions: mu is held.
func (n *networks) settle() {
	maps.DeleteFunc(n.made, func(own *inet.Namespace, _ struct{}) bool { return own.GetInode().ReadRefs() <= 0 })
	switch some := len(n.made) > 0; {
	case some == n.barred:
		return
	case some:
		tcpip.AddDanglingEndpoint(theBar)
	default:
		tcpip.DeleteDanglingEndpoint(theBar)
	}
	n.barred = !n.barred
}

// A bar is something among the sockets of a machine that cannot be saved, and so
// the machine cannot be.
type bar struct{ tcpip.Endpoint }

var theBar = &bar{}

// Abort implements tcpip.Endpoint.Abort, which is called at the end of a machine.
func (*bar) Abort() {}

// StateTypeName implements state.Type.StateTypeName.
func (*bar) StateTypeName() string { return "doze.bar" }

// StateFields implements state.Type.StateFields.
func (*bar) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.StateSave: gVisor turns a panic in it
// into an error of the checkpoint.
func (*bar) StateSave(state.Sink) {
	panic(errors.New("a network namespace that is in use cannot be saved"))
}

// StateLoad implements state.SaverLoader.StateLoad. None was ever saved.
func (*bar) StateLoad(context.Context, state.Source) {}
