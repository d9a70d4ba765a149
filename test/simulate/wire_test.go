package simulate_test

import (
	"context"
	"errors"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// lateMost is how late a request or an answer may come.
	lateMost = 45 * time.Second
	// patience is how long a caller waits for a peer that does not answer.
	patience = 10 * time.Second
	// Of a thousand calls so many come late, have their request lost, or their answer.
	latePer1000, lostPer1000, unheardPer1000 = 15, 8, 8
)

// errCut is the end of a call of which nobody knows whether it came.
var errCut = doze.Wrap(errors.Join(fleet.ErrUnreachable, errors.New("the wire is cut")), doze.Unavailable, "the node of the sandbox cannot be reached: try again")

// carry brings a request to its peer and the answer back, or does not. alive says whether
// the peer and its caller can reach each other.
func (s *simulation) carry(ctx context.Context, alive func() bool, do func() error) error {
	var there, back time.Duration
	lost, unheard := false, false
	if s.chaos.Load() {
		there, back = s.late(), s.late()
		lost, unheard = s.happens(lostPer1000), s.happens(unheardPer1000)
	}
	if err := s.pass(ctx, there); err != nil {
		return err
	}
	if lost || !alive() {
		s.count("requests lost")
		if err := s.pass(ctx, s.upTo(patience)); err != nil {
			return err
		}
		return errCut
	}
	err := do()
	if cut := s.pass(ctx, back); cut != nil {
		return cut
	}
	if unheard || !alive() {
		s.count("answers lost")
		if err := s.pass(ctx, s.upTo(patience)); err != nil {
			return err
		}
		return errCut
	}
	return err
}

// late is how long a message takes on its way.
func (s *simulation) late() time.Duration {
	if !s.happens(latePer1000) {
		return 0
	}
	s.count("messages late")
	return s.upTo(lateMost)
}

// A toNode is how one process of control reaches a host.
type toNode struct {
	fleet.Node

	h       *host
	process *process
}

func (w *toNode) alive() bool {
	w.h.turn.Lock()
	defer w.h.turn.Unlock()
	return !w.h.off && !w.h.cut.Load() && !w.process.dead.Load()
}

func (w *toNode) tell(ctx context.Context, do func() error) error {
	return w.h.s.carry(ctx, w.alive, do)
}

func ask[T any](ctx context.Context, w *toNode, do func() (T, error)) (out T, err error) {
	err = w.tell(ctx, func() error {
		var err error
		out, err = do()
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return out, nil
}

// Create implements [fleet.Node], as do those below.
func (w *toNode) Create(ctx context.Context, o fleet.Order) error {
	return w.tell(ctx, func() error { return w.h.Create(ctx, o) })
}

func (w *toNode) Delete(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Delete(ctx, uid) })
}

func (w *toNode) Claim(ctx context.Context, o fleet.Order, instead string) error {
	return w.tell(ctx, func() error { return w.h.Claim(ctx, o, instead) })
}

func (w *toNode) SetLimits(ctx context.Context, workspace string, l doze.Limits) error {
	return w.tell(ctx, func() error { return w.h.SetLimits(ctx, workspace, l) })
}

func (w *toNode) SetGrace(ctx context.Context, uid string, grace time.Duration) error {
	return w.tell(ctx, func() error { return w.h.SetGrace(ctx, uid, grace) })
}

func (w *toNode) SetNetwork(ctx context.Context, uid string, n *doze.Network) error {
	return w.tell(ctx, func() error { return w.h.SetNetwork(ctx, uid, n) })
}

func (w *toNode) Sleep(ctx context.Context, uid string, deep bool) error {
	return w.tell(ctx, func() error { return w.h.Sleep(ctx, uid, deep) })
}

func (w *toNode) Wake(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Wake(ctx, uid) })
}

func (w *toNode) Depart(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Depart(ctx, uid) })
}

func (w *toNode) Return(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Return(ctx, uid) })
}

func (w *toNode) Leave(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Leave(ctx, uid) })
}

func (w *toNode) Reinstate(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Reinstate(ctx, uid) })
}

func (w *toNode) Consult(ctx context.Context, uid string) error {
	return w.tell(ctx, func() error { return w.h.Consult(ctx, uid) })
}

func (w *toNode) Retire(ctx context.Context, uid string, since time.Time) (bool, error) {
	return ask(ctx, w, func() (bool, error) { return w.h.Retire(ctx, uid, since) })
}

func (w *toNode) Revive(ctx context.Context, o fleet.Order, used time.Time, ran bool) (time.Time, error) {
	return ask(ctx, w, func() (time.Time, error) { return w.h.Revive(ctx, o, used, ran) })
}

func (w *toNode) Awake(ctx context.Context, workspace string) (fleet.Awake, error) {
	return ask(ctx, w, func() (fleet.Awake, error) { return w.h.Awake(ctx, workspace) })
}

func (w *toNode) Statuses(ctx context.Context, uids []string) (map[string]fleet.Status, error) {
	return ask(ctx, w, func() (map[string]fleet.Status, error) { return w.h.Statuses(ctx, uids) })
}

func (w *toNode) Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error) {
	return ask(ctx, w, func() (map[string]doze.Usage, error) { return w.h.Consumption(ctx, uids) })
}

// A toControl is how a host reaches the process of control that there is.
type toControl struct{ h *host }

func (w *toControl) tell(ctx context.Context, do func(fleet.Control) error) error {
	s := w.h.s
	p := s.control.Load()
	return s.carry(ctx, func() bool { return p != nil && !p.dead.Load() && !w.h.cut.Load() }, func() error { return do(p.roster) })
}

func demand[T any](ctx context.Context, w *toControl, do func(fleet.Control) (T, error)) (out T, err error) {
	err = w.tell(ctx, func(c fleet.Control) error {
		var err error
		out, err = do(c)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return out, nil
}

// Join implements [fleet.Control], as do those below.
func (w *toControl) Join(ctx context.Context, n fleet.NodeInfo) (fleet.Lease, error) {
	return demand(ctx, w, func(c fleet.Control) (fleet.Lease, error) {
		l, err := c.Join(ctx, n)
		if err == nil {
			w.h.s.count("joins")
		}
		return l, err
	})
}

func (w *toControl) Reclaim(ctx context.Context, node string, machines []string, held map[string]fleet.Held) (fleet.Lease, error) {
	return demand(ctx, w, func(c fleet.Control) (fleet.Lease, error) { return c.Reclaim(ctx, node, machines, held) })
}

func (w *toControl) Renew(ctx context.Context, r fleet.Renewal) (fleet.Lease, error) {
	return demand(ctx, w, func(c fleet.Control) (fleet.Lease, error) { return c.Renew(ctx, r) })
}

func (w *toControl) Record(ctx context.Context, node string, reports []fleet.Report) error {
	return w.tell(ctx, func(c fleet.Control) error { return c.Record(ctx, node, reports) })
}

func (w *toControl) Claim(ctx context.Context, node, machine string) (fleet.Claim, error) {
	return demand(ctx, w, func(c fleet.Control) (fleet.Claim, error) { return c.Claim(ctx, node, machine) })
}

func (w *toControl) FileKey(ctx context.Context, node, name string) ([]byte, error) {
	return demand(ctx, w, func(c fleet.Control) ([]byte, error) { return c.FileKey(ctx, node, name) })
}

func (w *toControl) FileMark(ctx context.Context, node, name string) (string, error) {
	return demand(ctx, w, func(c fleet.Control) (string, error) { return c.FileMark(ctx, node, name) })
}

func (w *toControl) Certify(ctx context.Context, node string, request []byte) ([]byte, error) {
	return demand(ctx, w, func(c fleet.Control) ([]byte, error) { return c.Certify(ctx, node, request) })
}

func (w *toControl) ImageRefs(ctx context.Context) ([]string, error) {
	return demand(ctx, w, func(c fleet.Control) ([]string, error) { return c.ImageRefs(ctx) })
}

func (w *toControl) Traffic(ctx context.Context, node, incarnation string, bytes map[string]uint64) (map[string]string, error) {
	return demand(ctx, w, func(c fleet.Control) (map[string]string, error) { return c.Traffic(ctx, node, incarnation, bytes) })
}
