package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// Sandbox is the record of a sandbox.
type Sandbox struct {
	UID     string // its identity, from [NewID]; never reused
	Machine string // what nodes know it by: at first the UID, after a redeploy a new id
	// Authority names who signs for it where its requests are looked into: it has
	// its UID's. A copy has that of its original, since its memory trusts no other
	// one. Older records have none, which is that of the workspace.
	Authority string
	Phase     doze.Phase
	Seq       uint64 // of the last report about the machine
	Revision  int64  // grows when metadata, spec or machine change
	Redeploys int    // how many machines it had before this one
	Metadata  doze.Metadata
	Spec      doze.SandboxSpec
	Archive   *doze.Archive // nil if it never was archived; not to be changed
	Origin    *doze.Origin  // nil if it is no fork; not to be changed
	Events    []doze.Event  // filled by the methods that say so
	LastUsed  time.Time     // as far as the store was told
	Ended     time.Time     // zero until it is terminated
	Deadline  time.Time     // when control has to look at it again; zero is never
}

// content is the body of a record.
type content struct {
	Metadata  doze.Metadata    `json:"metadata"`
	Spec      doze.SandboxSpec `json:"spec"`
	Archive   *doze.Archive    `json:"archive,omitempty"`
	Origin    *doze.Origin     `json:"origin,omitempty"`
	Redeploys int              `json:"redeploys,omitempty"`
	Sealed    []byte           `json:"sealed,omitempty"` // values of secret variables, by position
	Authority string           `json:"authority,omitempty"`
	// Routing are the secrets of routing rules, by position and name, as they are
	// sealed for the proxy that carries requests.
	Routing map[int]map[string][]byte `json:"routing,omitempty"`
}

// encode is the body of a record, with the values of secret variables sealed.
// Secrets of routing rules come sealed; in plain they are in no record.
func (s *Store) encode(sb *Sandbox) (_ []byte, err error) {
	c := content{Metadata: sb.Metadata, Spec: sb.Spec, Archive: sb.Archive, Origin: sb.Origin, Redeploys: sb.Redeploys, Authority: sb.Authority}
	values := map[int]string{}
	for i, e := range sb.Spec.Runtime.Envs {
		if e.Secret && e.Text() != "" {
			values[i] = e.Text()
		}
	}
	if len(values) > 0 {
		c.Spec.Runtime.Envs = slices.Clone(sb.Spec.Runtime.Envs)
		for i := range values {
			c.Spec.Runtime.Envs[i].Value = nil
		}
	}
	if c.Sealed, err = s.sealValues(values, sandboxPlace+sb.UID); err != nil {
		return nil, err
	}
	c.Routing = map[int]map[string][]byte{}
	for i, route := range routing(&sb.Spec) {
		if len(route.Sealed) > 0 {
			c.Routing[i] = route.Sealed
		}
	}
	return json.Marshal(c)
}

// decode reads a body into sb. It is the inverse of encode.
func (s *Store) decode(sb *Sandbox, body []byte) error {
	var c content
	if err := json.Unmarshal(body, &c); err != nil {
		return err
	}
	sb.Metadata, sb.Spec, sb.Archive, sb.Origin = c.Metadata, c.Spec, c.Archive, c.Origin
	sb.Redeploys, sb.Authority = c.Redeploys, c.Authority
	values, err := s.unsealValues(c.Sealed, sandboxPlace+sb.UID)
	if err != nil {
		return err
	}
	for i := range sb.Spec.Runtime.Envs {
		if v, ok := values[i]; ok {
			sb.Spec.Runtime.Envs[i].Value = &v
		}
	}
	for i, all := 0, routing(&sb.Spec); i < len(all); i++ {
		all[i].Sealed = c.Routing[i]
	}
	return nil
}

// routing are the routing rules of a spec.
func routing(spec *doze.SandboxSpec) []doze.ProxyTarget {
	if spec.Network == nil || spec.Network.Proxy == nil {
		return nil
	}
	return spec.Network.Proxy.Routing
}

// sealValues seals values by position; no values are nothing.
func (s *Store) sealValues(values map[int]string, place string) ([]byte, error) {
	if len(values) == 0 {
		return nil, nil
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return s.cipher.Seal(plain, place), nil
}

// unsealValues is the inverse of sealValues.
func (s *Store) unsealValues(sealed []byte, place string) (values map[int]string, err error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	plain, err := s.cipher.Unseal(sealed, place)
	if err != nil {
		return nil, err
	}
	return values, json.Unmarshal(plain, &values)
}

const (
	sandboxPlace   = "sandbox/" // of what is sealed in a record
	sandboxColumns = `uid, machine, phase, seq, revision, last_used_at, ended_at, deadline, body`
	// alive are the records that hold their name.
	alive = `phase NOT IN ('deleting', 'terminated')`
)

// InsertSandbox adds the record of a sandbox that does not run yet, in the
// phase after some steps from pending, and gives it its volumes. A name that
// another living sandbox has is a Conflict; so is a volume, with a name of its own.
// More than the workspace may have is Exhausted.
func (s *Store) InsertSandbox(ctx context.Context, sb Sandbox, on ...doze.Trigger) (_ Sandbox, err error) {
	sb.Phase, sb.Machine, sb.Revision = doze.Pending, sb.UID, 1
	for _, trigger := range on {
		if sb.Phase, err = doze.Next(sb.Phase, trigger); err != nil {
			return sb, err
		}
	}
	body, err := s.encode(&sb)
	if err != nil {
		return sb, wrap(err, "encode sandbox")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes
			(uid, workspace, name, external_id, search, machine, phase, seq, revision, created_at, last_used_at, ended_at, deadline, body)
			VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, $10, 0, $11, $12)`,
			sb.UID, sb.Metadata.Workspace, sb.Metadata.Name, sb.Metadata.ExternalID, searchText(sb.Metadata), sb.Machine,
			sb.Phase.String(), sb.Revision, millis(sb.Metadata.CreatedAt.Time), millis(sb.LastUsed), nullable(sb.Deadline), string(body))
		if err != nil {
			return err
		}
		// Now, since a name that is taken says more to its caller.
		// A sandbox takes some disk, and nobody knows yet how much. The disk that it has counts
		// already.
		err = cmp.Or(
			s.checkQuota(ctx, tx, sb.Metadata.Workspace, doze.QuotaSandboxes, 1),
			s.checkQuota(ctx, tx, sb.Metadata.Workspace, doze.QuotaDisk, 1),
		)
		if err != nil {
			return err
		}
		if err := cmp.Or(count(ctx, tx, sb.Metadata.Workspace, 1), index(ctx, tx, sb.searched()), attach(ctx, tx, &sb)); err != nil {
			return err
		}
		if err := appendEvent(ctx, tx, &sb, doze.EventDeployment, sb.Phase, "", sb.Metadata.CreatedAt.Time); err != nil {
			return err
		}
		for _, e := range sb.Events {
			if err := appendEvent(ctx, tx, &sb, doze.EventNotice, sb.Phase, e.Message, sb.Metadata.CreatedAt.Time); err != nil {
				return err
			}
		}
		return nil
	})
	if duplicate(err) {
		return sb, doze.Errorf(doze.Conflict, "the sandbox %s already exists", sb.Metadata.Name)
	}
	return sb, wrap(err, "insert sandbox")
}

// Sandbox returns a record with its events, or NotFound.
func (s *Store) Sandbox(ctx context.Context, uid string) (Sandbox, error) {
	return s.full(ctx, "there is no such sandbox", `uid = $1`, uid)
}

// Admits reports whether requests may reach the sandbox: whether it is enabled.
func (sb *Sandbox) Admits() bool {
	return sb.Spec.IsEnabled() && sb.Phase != doze.Disabling && sb.Phase != doze.Disabled
}

// SandboxByName returns the living sandbox of a name, or else the one that
// ended last and is not purged yet, with its events; or NotFound.
func (s *Store) SandboxByName(ctx context.Context, workspace, name string) (Sandbox, error) {
	return s.full(ctx, fmt.Sprintf("there is no sandbox %.80q", name), `workspace = $1 AND name = $2
		ORDER BY CASE WHEN `+alive+` THEN 0 ELSE 1 END, created_at DESC, uid`, workspace, name)
}

// Living is SandboxByName for those alone that have not ended.
func (s *Store) Living(ctx context.Context, workspace, name string) (Sandbox, error) {
	sb, err := s.SandboxByName(ctx, workspace, name)
	if err == nil && sb.Phase.Ended() {
		err = doze.Errorf(doze.NotFound, "there is no sandbox %q", name)
	}
	return sb, err
}

// LatestByExternalID returns the youngest living sandbox with an external id,
// with its events; or NotFound.
func (s *Store) LatestByExternalID(ctx context.Context, workspace, id string) (Sandbox, error) {
	return s.full(ctx, fmt.Sprintf("no active sandbox has the external id %.80q", id), `workspace = $1 AND external_id = $2
		AND external_id <> '' AND `+alive+` ORDER BY created_at DESC, uid`, workspace, id)
}

func (s *Store) full(ctx context.Context, missing, where string, args ...any) (Sandbox, error) {
	sb, err := one(ctx, s.read, s.scanSandbox, missing, `SELECT `+sandboxColumns+` FROM sandboxes WHERE `+where+` LIMIT 1`, args...)
	if err != nil {
		return sb, wrap(err, "read sandbox")
	}
	sb.Events, err = events(ctx, s.read, sb.UID)
	return sb, wrap(err, "read events")
}

// EachLiving calls fn for every record that is neither deleted nor terminated,
// without events, until fn returns an error.
func (s *Store) EachLiving(ctx context.Context, fn func(Sandbox) error) (err error) {
	return s.each(ctx, fn, alive)
}

// machinesAsked is how many machines are looked up by one query.
const machinesAsked = 500

// EachOf calls fn with the living sandboxes of some machines, until it returns an error.
func (s *Store) EachOf(ctx context.Context, machines []string, fn func(Sandbox) error) error {
	for some := range slices.Chunk(machines, machinesAsked) {
		marks, args := listOf(some)
		if err := s.each(ctx, fn, `machine IN (`+marks+`) AND `+alive, args...); err != nil {
			return err
		}
	}
	return nil
}

// EachUnplaced calls fn with the living sandboxes whose machines have no place on record, until
// it returns an error.
func (s *Store) EachUnplaced(ctx context.Context, fn func(Sandbox) error) error {
	return s.each(ctx, fn, alive+` AND machine NOT IN (SELECT id FROM places WHERE kind = 'machine')`)
}

// Machines returns those of some machines that a record names: of a sandbox that has not
// ended, or among those that are to be removed.
func (s *Store) Machines(ctx context.Context, of []string) (map[string]bool, error) {
	all := map[string]bool{}
	for some := range slices.Chunk(of, machinesAsked) {
		marks, args := listOf(some)
		named, err := collect(ctx, s.read, scanText, `SELECT machine FROM sandboxes WHERE machine IN (`+marks+`) AND phase <> 'terminated'
			UNION SELECT machine FROM leftovers WHERE machine IN (`+marks+`)`, args...)
		if err != nil {
			return nil, wrap(err, "look for machines")
		}
		for _, machine := range named {
			all[machine] = true
		}
	}
	return all, nil
}

// each calls fn with the sandboxes that a condition is true of, until it returns an error.
func (s *Store) each(ctx context.Context, fn func(Sandbox) error, where string, args ...any) (err error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes WHERE `+where, args...)
	if err != nil {
		return wrap(err, "read sandboxes")
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		sb, err := s.scanSandbox(rows)
		if err != nil {
			return wrap(err, "read sandboxes")
		}
		if err := fn(sb); err != nil {
			return err
		}
	}
	return wrap(classify(ctx, rows.Err()), "read sandboxes")
}

// Unfinished returns up to limit records in phases that control has to lead
// on from: pending, starting, disabling and deleting. Events are left out.
func (s *Store) Unfinished(ctx context.Context, limit int) ([]Sandbox, error) {
	all, err := collect(ctx, s.read, s.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE phase IN ('pending', 'starting', 'disabling', 'archiving', 'unarchiving', 'deleting') LIMIT $1`, limit)
	return all, wrap(err, "read unfinished sandboxes")
}

// Update writes the metadata, the spec and the deadline of sb. If the record
// changed since sb was read, it is a Conflict.
func (s *Store) Update(ctx context.Context, sb Sandbox) (Sandbox, error) {
	return s.change(ctx, sb.UID, sb.Revision, func(tx *sql.Tx, now *Sandbox) error {
		now.Metadata, now.Spec, now.Deadline = sb.Metadata, sb.Spec, sb.Deadline
		now.Revision++
		return s.save(ctx, tx, now)
	})
}

// Step moves a sandbox on along [doze.Transitions].
type Step struct {
	On       doze.Trigger
	Message  string        // public: why, in one clause; empty stands for the usual one
	At       time.Time     // now
	Revision int64         // if not 0, a record that changed since is a Conflict
	Write    *Sandbox      // if set, its metadata, spec and deadline are written too
	Machine  string        // if set, the sandbox gets this fresh machine, and the old one is a leftover
	Archive  *doze.Archive // if set, what is recorded of its archive
}

// Apply moves a sandbox on, writes the event if its status changed, and
// returns the record with its events. Being there already is no error, and
// nothing is written; a step that the phase forbids is a Conflict.
//
// The recorded phase trails the node's, which moves on its own between the
// phases of one status. What is allowed in one that it may have reached is
// allowed.
func (s *Store) Apply(ctx context.Context, uid string, st Step) (Sandbox, error) {
	return s.change(ctx, uid, st.Revision, func(tx *sql.Tx, sb *Sandbox) error {
		to, there, err := follow(sb.Phase, st.On)
		if err != nil {
			return err
		}
		if !there {
			if err := s.step(ctx, tx, sb, to, st); err != nil {
				return err
			}
		}
		sb.Events, err = events(ctx, tx, uid)
		return err
	})
}

// step writes one step of control.
func (s *Store) step(ctx context.Context, tx *sql.Tx, sb *Sandbox, to doze.Phase, st Step) error {
	if st.Write != nil {
		sb.Metadata, sb.Spec, sb.Deadline = st.Write.Metadata, st.Write.Spec, st.Write.Deadline
		sb.Revision++
	}
	if st.Machine != "" {
		if err := leave(ctx, tx, sb.Machine); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM leftovers WHERE machine = $1`, st.Machine); err != nil {
			return err
		}
		sb.Machine, sb.Seq = st.Machine, 0
		sb.Redeploys++
		sb.Revision++
	}
	if st.Archive != nil {
		sb.Archive = st.Archive
	}
	return s.move(ctx, tx, sb, to, st.Message, st.At)
}

// follow returns the phase after a step of control, or reports that the step is
// done already.
func follow(from doze.Phase, on doze.Trigger) (to doze.Phase, there bool, err error) {
	if to, err = doze.Next(from, on); err == nil {
		return to, false, nil
	}
	for _, p := range ahead[from] {
		if to, err := doze.Next(p, on); err == nil && p.Status() == from.Status() {
			return to, false, nil
		}
	}
	for _, t := range doze.Transitions {
		if t.On == on && t.To.Status() == from.Status() {
			return from, true, nil
		}
	}
	return from, false, err
}

// A Report is what a node says about a machine.
type Report struct {
	Machine  string
	Seq      uint64
	Phase    doze.Phase
	Message  string
	At       time.Time
	LastUsed time.Time // zero if the node does not know
	Note     bool      // the phase did not change, the message is an event of its own
}

// Accept records reports, in order and in one transaction, and returns the
// records that moved, without events. It skips a report about an unknown
// machine, one that is not newer than the last, and a phase that no step of
// the node leads to from the recorded one. Reports may be lost: several steps
// at once are fine.
func (s *Store) Accept(ctx context.Context, reports []Report) (moved []Sandbox, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		for _, r := range reports {
			sb, err := one(ctx, tx, s.scanSandbox, "", `SELECT `+sandboxColumns+` FROM sandboxes WHERE machine = $1`, r.Machine)
			if e, ok := errors.AsType[*doze.Error](err); ok && e.Kind == doze.NotFound {
				continue
			}
			if err != nil {
				return err
			}
			ok, err := s.accept(ctx, tx, &sb, r)
			if err != nil {
				return err
			}
			if ok {
				moved = append(moved, sb)
			}
		}
		return nil
	})
	return moved, wrap(err, "accept reports")
}

// accept records one report and says whether it moved sb.
func (s *Store) accept(ctx context.Context, tx *sql.Tx, sb *Sandbox, r Report) (bool, error) {
	if r.Seq <= sb.Seq || r.Seq > math.MaxInt64 {
		return false, nil
	}
	sb.Seq = r.Seq
	if r.LastUsed.After(sb.LastUsed) {
		sb.LastUsed = r.LastUsed
	}
	switch {
	case r.Note:
		if err := appendEvent(ctx, tx, sb, doze.EventNotice, sb.Phase, r.Message, r.At); err != nil {
			return false, err
		}
	case r.Phase != sb.Phase && slices.Contains(ahead[sb.Phase], r.Phase):
		return true, s.move(ctx, tx, sb, r.Phase, r.Message, r.At)
	}
	return false, s.save(ctx, tx, sb)
}

// ahead are, for each phase, those that a node may lead to on its own.
var ahead = func() map[doze.Phase][]doze.Phase {
	all := map[doze.Phase][]doze.Phase{}
	for _, from := range doze.Phases() {
		queue := []doze.Phase{from}
		for len(queue) > 0 {
			p := queue[0]
			queue = queue[1:]
			for _, t := range doze.Transitions {
				if t.By == doze.ByNode && slices.Contains(t.From, p) && !slices.Contains(all[from], t.To) {
					all[from] = append(all[from], t.To)
					queue = append(queue, t.To)
				}
			}
		}
	}
	return all
}()

// move writes sb with its next phase, and the event if the status changes or
// there is something to say.
func (s *Store) move(ctx context.Context, tx *sql.Tx, sb *Sandbox, to doze.Phase, message string, at time.Time) error {
	from := sb.Phase
	sb.Phase = to
	switch to { //nolint:exhaustive // only the end of a life changes what control has to look at
	case doze.Deleting:
		sb.Deadline = time.Time{}
	case doze.Terminated:
		sb.Ended = moment(millis(at))
		sb.Deadline = sb.Ended.Add(sb.Spec.Lifecycle.Retention())
	}
	if err := s.save(ctx, tx, sb); err != nil {
		return err
	}
	if to.Ended() {
		if err := forgetSchedules(ctx, tx, []string{sb.UID}); err != nil {
			return err
		}
	}
	if to == doze.Terminated && from != to {
		if err := cmp.Or(count(ctx, tx, sb.Metadata.Workspace, -1), detach(ctx, tx, sb, at)); err != nil {
			return err
		}
	}
	switch {
	case from.Status() != to.Status():
		return appendEvent(ctx, tx, sb, doze.EventDeployment, to, message, at)
	case message != "": // such as a wake that did not work
		return appendEvent(ctx, tx, sb, doze.EventNotice, to, message, at)
	}
	return nil
}

// change reads a record, hands it to fn in the same transaction, and returns
// what fn made of it.
func (s *Store) change(ctx context.Context, uid string, revision int64, fn func(*sql.Tx, *Sandbox) error) (sb Sandbox, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		sb, err = one(ctx, tx, s.scanSandbox, "there is no such sandbox", `SELECT `+sandboxColumns+` FROM sandboxes WHERE uid = $1`, uid)
		if err != nil {
			return err
		}
		if revision != 0 && revision != sb.Revision {
			return doze.Errorf(doze.Conflict, "the sandbox was changed meanwhile: read it again")
		}
		network, searched := sb.Spec.Network, sb.searched()
		if err := fn(tx, &sb); err != nil {
			return err
		}
		if now := sb.searched(); now != searched {
			if err := cmp.Or(unindex(ctx, tx, searched), index(ctx, tx, now)); err != nil {
				return err
			}
		}
		if reflect.DeepEqual(network, sb.Spec.Network) {
			return nil
		}
		return bequeath(ctx, tx, &sb)
	})
	return sb, wrap(err, "change sandbox")
}

// Notify adds a notice to the events of a sandbox.
func (s *Store) Notify(ctx context.Context, uid, message string, at time.Time) error {
	_, err := s.change(ctx, uid, 0, func(tx *sql.Tx, sb *Sandbox) error {
		return appendEvent(ctx, tx, sb, doze.EventNotice, sb.Phase, message, at)
	})
	return err
}

// save writes every column of sb that can change.
func (s *Store) save(ctx context.Context, tx *sql.Tx, sb *Sandbox) error {
	body, err := s.encode(sb)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET external_id = $1, search = $2, machine = $3, phase = $4, seq = $5,
		revision = $6, last_used_at = $7, ended_at = $8, deadline = $9, body = $10 WHERE uid = $11`,
		sb.Metadata.ExternalID, searchText(sb.Metadata), sb.Machine, sb.Phase.String(), seqColumn(sb.Seq),
		sb.Revision, millis(sb.LastUsed), millis(sb.Ended), nullable(sb.Deadline), string(body), sb.UID)
	return err
}

// NextDeadline returns the earliest deadline of all records, or the zero time.
func (s *Store) NextDeadline(ctx context.Context) (time.Time, error) {
	return s.earliest(ctx, `SELECT MIN(deadline) FROM sandboxes WHERE deadline IS NOT NULL`)
}

// earliest is the moment that a query of one row gives; the zero time for none.
func (s *Store) earliest(ctx context.Context, query string) (time.Time, error) {
	at, err := one(ctx, s.read, func(r row) (ms sql.Null[int64], err error) { return ms, r.Scan(&ms) }, "", query)
	return moment(at.V), wrap(err, "read what is due next")
}

// Due returns up to limit living records whose deadline has come, the earliest
// first, without events.
func (s *Store) Due(ctx context.Context, now time.Time, limit int) ([]Sandbox, error) {
	all, err := collect(ctx, s.read, s.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE deadline <= $1 AND `+alive+` ORDER BY deadline LIMIT $2`, millis(now), limit)
	return all, wrap(err, "read due sandboxes")
}

// A Deadline moves the deadline of a record.
type Deadline struct {
	UID      string
	Revision int64 // a record that changed since is left alone
	At       time.Time
}

// SetDeadlines moves deadlines in one transaction.
func (s *Store) SetDeadlines(ctx context.Context, all []Deadline) error {
	if len(all) == 0 {
		return nil
	}
	err := s.update(ctx, func(tx *sql.Tx) error {
		for _, d := range all {
			_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET deadline = $1 WHERE uid = $2 AND revision = $3 AND `+alive, nullable(d.At), d.UID, d.Revision)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "move deadlines")
}

// Touch records when sandboxes were last used, by machine. An earlier moment
// than the recorded one is ignored.
func (s *Store) Touch(ctx context.Context, used map[string]time.Time) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		for machine, at := range used {
			_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET last_used_at = $1 WHERE machine = $2 AND last_used_at < $1`, millis(at), machine)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "record the use of sandboxes")
}

// Purgeable returns the records that [Store.Purge] would remove, with their events.
func (s *Store) Purgeable(ctx context.Context, now time.Time, limit int) ([]Sandbox, error) {
	all, err := collect(ctx, s.read, s.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE deadline <= $1 AND phase = 'terminated' ORDER BY deadline LIMIT $2`, millis(now), limit)
	for i := range all {
		if err == nil {
			all[i].Events, err = events(ctx, s.read, all[i].UID)
		}
	}
	return all, wrap(err, "read what is over")
}

// Purge removes up to limit terminated records whose retention is over, and
// says how many it removed.
func (s *Store) Purge(ctx context.Context, now time.Time, limit int) (int, error) {
	var purged []searched
	err := s.update(ctx, func(tx *sql.Tx) (err error) {
		purged, err = collect(ctx, tx, scanSearched, `DELETE FROM sandboxes WHERE uid IN (SELECT uid FROM sandboxes
			WHERE deadline <= $1 AND phase = 'terminated' ORDER BY deadline LIMIT $2) RETURNING uid, workspace, search`, millis(now), limit)
		if err != nil {
			return err
		}
		return unindex(ctx, tx, purged...)
	})
	return len(purged), wrap(err, "purge")
}

// Remove erases a record at once, as if it had never been; its machine becomes
// a leftover.
func (s *Store) Remove(ctx context.Context, uid string) error {
	_, err := s.change(ctx, uid, 0, func(tx *sql.Tx, sb *Sandbox) error {
		if err := leave(ctx, tx, sb.Machine); err != nil {
			return err
		}
		if sb.Phase != doze.Terminated {
			if err := count(ctx, tx, sb.Metadata.Workspace, -1); err != nil {
				return err
			}
		}
		if err := cmp.Or(detach(ctx, tx, sb, time.Now()), unindex(ctx, tx, sb.searched())); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE uid = $1`, uid)
		return err
	})
	return err
}

// count adds to the number of sandboxes of a workspace that are not terminated.
func count(ctx context.Context, tx *sql.Tx, workspace string, more int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO counts (workspace, sandboxes) VALUES ($1, $2)
		ON CONFLICT (workspace) DO UPDATE SET sandboxes = counts.sandboxes + excluded.sandboxes`, workspace, more)
	return err
}

// Count is how many sandboxes of a workspace are not terminated.
func (s *Store) Count(ctx context.Context, workspace string) (int, error) {
	all, err := collect(ctx, s.read, scanNumber,
		`SELECT sandboxes FROM counts WHERE workspace = $1`, workspace)
	if err != nil || len(all) == 0 {
		return 0, wrap(err, "count sandboxes")
	}
	return all[0], nil
}

// Reserve notes a machine that is about to be made and is nobody's yet. Until a
// [Step] gives it to a sandbox, it is a leftover.
func (s *Store) Reserve(ctx context.Context, machine string) error {
	err := s.update(ctx, func(tx *sql.Tx) error { return leave(ctx, tx, machine) })
	return wrap(err, "note a machine")
}

// leave notes that nobody needs a machine any more.
func leave(ctx context.Context, tx *sql.Tx, machine string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO leftovers (machine) VALUES ($1) ON CONFLICT (machine) DO NOTHING`, machine)
	return err
}

// Leftovers returns up to limit machines that nodes may still have and that no
// sandbox needs.
func (s *Store) Leftovers(ctx context.Context, limit int) ([]string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT machine FROM leftovers LIMIT $1`, limit)
	return all, wrap(err, "read leftovers")
}

// IsLeftover reports whether no sandbox needs a machine.
func (s *Store) IsLeftover(ctx context.Context, machine string) (is bool, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM leftovers WHERE machine = $1)`, machine).Scan(&is)
	return is, wrap(err, "read a leftover")
}

// ForgetLeftover notes that nothing of a machine is left.
func (s *Store) ForgetLeftover(ctx context.Context, machine string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM leftovers WHERE machine = $1`, machine)
	return wrap(err, "forget a leftover")
}

func (s *Store) scanSandbox(r row) (sb Sandbox, err error) {
	var phase, body string
	var seq, used, ended int64
	var deadline sql.Null[int64]
	if err := r.Scan(&sb.UID, &sb.Machine, &phase, &seq, &sb.Revision, &used, &ended, &deadline, &body); err != nil {
		return sb, err
	}
	if sb.Phase, err = doze.ParsePhase(phase); err != nil {
		return sb, err
	}
	sb.Seq, sb.LastUsed, sb.Ended = uint64(max(seq, 0)), moment(used), moment(ended)
	if deadline.Valid {
		sb.Deadline = moment(deadline.V)
	}
	if err := s.decode(&sb, []byte(body)); err != nil {
		return sb, fmt.Errorf("the body of sandbox %s is damaged: %w", sb.UID, err)
	}
	return sb, nil
}

// seqColumn is a sequence number as a column keeps it.
func seqColumn(n uint64) int64 {
	if n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

// nullable is a deadline as its column keeps it.
func nullable(t time.Time) sql.Null[int64] {
	return sql.Null[int64]{V: millis(t), Valid: !t.IsZero()}
}

// searched is sb as the index of searches has it.
func (sb *Sandbox) searched() searched {
	return searched{sb.UID, sb.Metadata.Workspace, searchText(sb.Metadata)}
}

// between keeps a search from matching across two values.
const between = "\x1f"

// searchText is what a list is searched for (q): name, display name, and the
// keys and values of labels.
func searchText(m doze.Metadata) string {
	text := []string{m.Name, m.DisplayName}
	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		text = append(text, k, m.Labels[k])
	}
	return strings.ToLower(strings.Join(text, between))
}
