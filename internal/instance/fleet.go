package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/vault"
)

const (
	// bucketTime bounds the try of a bucket.
	bucketTime = time.Minute
	// namedMost is how many of the things that are missing an error names.
	namedMost = 5
	// builderPlace is the kind of the place of a builder: a cache, which nobody misses.
	builderPlace = "builder"
)

// holdings are what records name that a bucket has copies of: sandboxes by their machines, and
// volumes and snapshots by their ids.
type holdings struct {
	machines           []string
	volumes, snapshots map[string]bool
}

// held reads the holdings of records. Sandboxes that failed have nothing any more.
func held(ctx context.Context, st *store.Store) (h holdings, err error) {
	err = st.EachLiving(ctx, func(sb store.Sandbox) error {
		if sb.Machine != "" && sb.Phase != doze.Failed {
			h.machines = append(h.machines, sb.Machine)
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	if h.volumes, err = st.Disks(ctx); err != nil {
		return h, err
	}
	all, err := st.AllSnapshots(ctx)
	h.snapshots = map[string]bool{}
	for _, n := range all {
		if n.Status == doze.SnapshotReady {
			h.snapshots[n.ID] = true
		}
	}
	return h, err
}

// names reports whether something in a bucket is of these records. Files are shared, and
// belong to nobody.
func (h holdings) names(id string) bool {
	if m := fleet.SnapshotForm.FindStringSubmatch(id); m != nil {
		return h.snapshots[m[1]]
	}
	if m := fleet.VolumeForm.FindStringSubmatch(id); m != nil {
		return h.volumes[m[1]]
	}
	return fleet.FileForm.MatchString(id) || fleet.ImageForm.MatchString(id) || slices.Contains(h.machines, id)
}

// tell says what is to be done next, and when the bucket has what.
func (h holdings) tell(w io.Writer, s settings.Settings) {
	fmt.Fprintf(w, `The bucket %s can be used. Start dozed control, dozed node and dozed edge with --remote and --remote-credentials.
Until the node has copied them, these are on this host alone: %d sandboxes, %d volumes, %d snapshots. It copies
a sandbox, with its volumes, when it has slept for %s (--remote-after), and every %s while it does not sleep (--remote-every);
snapshots, archives, images that were built, volume templates, and volumes that no sandbox has, within a minute.
An archive of a sandbox with volumes stays on its node.
`, s.Remote, len(h.machines), len(h.volumes), len(h.snapshots), s.RemoteAfter, s.RemoteEvery)
}

// within calls do with the records at an address. They must be of a platform whose keys are in
// the data directory.
func within(ctx context.Context, data, records string, do func(*store.Store) error) (err error) {
	if _, err := os.Stat(SealFile(data)); errors.Is(err, fs.ErrNotExist) {
		return doze.Errorf(doze.Conflict, "%s has no %s: copy it, %s and %s from the data directory of control first", data, sealFile, host.EgressFile, keyFile)
	}
	cipher, err := seal.Open(SealFile(data))
	if err != nil {
		return err
	}
	st, err := store.Open(ctx, records, cipher)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return do(st)
}

// leaveHome prepares records for a move to a server. It records that the sandboxes of a data
// directory are on its node. Otherwise the first machine that joins the fleet would count as
// that node, and have none of them. A platform of one process does not read it. The bucket, if
// there is to be one, is tried first.
func (m *Migration) leaveHome(ctx context.Context, s settings.Settings, records string) (has holdings, err error) {
	_, err = os.Stat(filepath.Join(s.Data, "sandboxes"))
	never := errors.Is(err, fs.ErrNotExist) // the directory has never had a node
	if never && m.Bucket == "" {
		return has, nil
	}
	return has, within(ctx, s.Data, records, func(st *store.Store) error {
		if has, err = held(ctx, st); err != nil {
			return err
		}
		if m.Bucket != "" {
			if err := tryBucket(ctx, s, has); err != nil {
				return err
			}
		}
		if home, err := st.Setting(ctx, store.HomeNode); home != "" || never || err != nil {
			return err
		}
		id, err := NodeID(s.Data)
		if err != nil {
			return err
		}
		return st.SetSetting(ctx, store.HomeNode, id)
	})
}

// tryBucket writes to the bucket of a fleet, reads, and removes it again. A bucket with copies
// of another platform is a Conflict: control would remove them.
func tryBucket(ctx context.Context, s settings.Settings, has holdings) error {
	if s.RemoteKeys == "" {
		return doze.Errorf(doze.Invalid, "name the file with the credentials of the bucket with --remote-credentials")
	}
	bucket, err := drive.Open(s.RemoteBucket())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	if err := bucket.Check(ctx); err != nil {
		return fmt.Errorf("the bucket %s cannot be used: %w", s.Remote, err)
	}
	client, name := bucket.Client()
	v, err := vault.New(client, name, vault.Options{})
	if err != nil {
		return err
	}
	if err := v.Check(ctx); err != nil {
		return fmt.Errorf("the bucket %s cannot be used: its credentials must be able to write, read, list and delete: %w", s.Remote, err)
	}
	ids, err := v.List(ctx)
	if err != nil {
		return fmt.Errorf("the bucket %s cannot be used: its credentials must be able to list: %w", s.Remote, err)
	}
	if ids = slices.DeleteFunc(ids, has.names); len(ids) > 0 {
		return doze.Errorf(doze.Conflict, "the bucket %s has copies of another platform, or of what this one deleted after it left the bucket, such as %s. Control would remove them: use an empty bucket", s.Remote, ids[0])
	}
	return nil
}

// comeHome prepares the records of a fleet for a platform of one process. Everything must be in
// the data directory, whose node is the last one. Its sandboxes need no lease from then on.
func comeHome(ctx context.Context, s settings.Settings, records string) error {
	id, err := NodeID(s.Data)
	if err != nil {
		return err
	}
	err = within(ctx, s.Data, records, func(st *store.Store) error {
		nodes, err := st.Nodes(ctx)
		if len(nodes) == 0 || err != nil { // it never was a fleet
			return err
		}
		if restored, err := st.Restored(ctx); err != nil || restored {
			return cmp.Or(err, doze.Errorf(doze.Conflict, "the records were restored: start the fleet, and use doze node settle first"))
		}
		places, err := st.Places(ctx)
		if err != nil {
			return err
		}
		if err := aloneIn(nodes, places, id); err != nil {
			return err
		}
		home, err := st.Setting(ctx, store.HomeNode)
		if err == nil && home != "" && home != id {
			err = st.CheckPlaced(ctx)
		}
		if err != nil {
			return err
		}
		if err := whole(ctx, st, s, places); err != nil {
			return err
		}
		return st.SetSetting(ctx, store.HomeNode, id)
	})
	if err != nil {
		return err
	}
	where, err := Remains(s.Data, Instance{Run: s.Run, Cgroup: s.Cgroup})
	if err != nil {
		return err
	}
	return host.Unlease(ctx, s.Data, where.Run, where.Cgroup)
}

// MarkRestored has the records of a control that is stopped say that somebody restored them. Nodes know
// better than such records: see [store.Store.MarkRestored].
func MarkRestored(ctx context.Context, s settings.Settings) error {
	records, err := Where(s.Data, s.Database)
	if err != nil {
		return err
	}
	if s.Database == "" {
		if _, err := os.Stat(records); errors.Is(err, fs.ErrNotExist) {
			return doze.Errorf(doze.NotFound, "%s has no records: name the data directory of dozed control with --data, and its database with --database or --database-file", s.Data)
		}
	}
	unlock, err := LockRole(string(mtls.Control), s.Data)
	if err != nil {
		return fmt.Errorf("stop dozed control first: %w", err)
	}
	defer unlock()
	return within(ctx, s.Data, records, func(st *store.Store) error {
		nodes, err := st.Nodes(ctx)
		if err != nil {
			return err
		}
		if len(nodes) == 0 {
			return doze.Errorf(doze.Conflict, "the records name no node: they are those of dozed all, which needs no mark, or no records at all")
		}
		return st.MarkRestored(ctx, time.Now())
	})
}

// aloneIn is a Conflict if records name another node than that with an id, or say that others
// have something.
func aloneIn(nodes []store.Node, places []store.Place, id string) error {
	counts := map[string]map[string]int{}
	for _, n := range nodes {
		counts[n.ID] = map[string]int{}
	}
	for _, p := range places {
		if p.Kind == builderPlace {
			continue
		}
		if counts[p.Node] == nil {
			counts[p.Node] = map[string]int{}
		}
		counts[p.Node][p.Kind]++
	}
	delete(counts, id)
	if len(counts) == 0 {
		return nil
	}
	var others []string
	for node, has := range counts {
		var parts []string
		for kind, n := range has {
			parts = append(parts, fmt.Sprintf("%d of the kind %s", n, kind))
		}
		slices.Sort(parts)
		if len(parts) == 0 {
			parts = []string{"nothing"}
		}
		others = append(others, node+" has "+strings.Join(parts, ", "))
	}
	slices.Sort(others)
	return doze.Errorf(doze.Conflict, "the platform still has other nodes: %s. Start it again, cordon all nodes but %s, drain the others, stop them, and remove each with doze node rm. Delete before what no drain moves", strings.Join(others, "; "), id)
}

// whole is a Conflict if a data directory lacks something that its node has on record.
func whole(ctx context.Context, st *store.Store, s settings.Settings, places []store.Place) error {
	has, err := held(ctx, st)
	if err != nil {
		return err
	}
	p := host.Placed{Machines: has.machines, Volumes: map[string]uint64{}}
	for id := range has.snapshots {
		p.Snapshots = append(p.Snapshots, id)
	}
	for id := range has.volumes {
		p.Volumes[id] = 1
	}
	for _, at := range places {
		if at.Kind == "volume" && has.volumes[at.ID] {
			p.Volumes[at.ID] = at.Epoch
		}
	}
	if p.Images, err = st.BuiltRefs(ctx); err != nil {
		return err
	}
	lacks, err := host.Lacking(s.Data, s.ImagesDir, p)
	if err != nil || len(lacks) == 0 {
		return err
	}
	slices.Sort(lacks)
	more := ""
	if len(lacks) > namedMost {
		more = fmt.Sprintf(" and %d more", len(lacks)-namedMost)
	}
	return doze.Errorf(doze.Conflict, "%s does not have %s%s: start control and the node again, and wait until all memory came from the bucket. A volume, an image or a template comes with the next sandbox or volume that needs it", s.Data, strings.Join(lacks[:min(len(lacks), namedMost)], ", "), more)
}
