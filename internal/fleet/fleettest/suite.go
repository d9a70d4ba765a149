package fleettest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// A Host makes nodes for [Run].
type Host struct {
	// Node returns a node without sandboxes. It ends with the test.
	Node func(t *testing.T) fleet.Node
	// Image is the reference of an image that the node can run.
	Image string
	// Private is the reference of an image that the node pulls with [Login] alone.
	Private string
	// Crew says that the node stands for several nodes. It knows which of them has a volume,
	// and has only the others leave the volume.
	Crew bool
}

// Login are the credentials for the image [Host.Private].
var Login = fleet.Login{Workspace: "main", Username: "user", Password: "word"}

// CheckLogin is what a fake does with a login: an image whose reference has the word
// "private" needs the password of [Login]. The error is Invalid.
func CheckLogin(ref string, login *fleet.Login) error {
	if strings.Contains(ref, "private") && (login == nil || login.Password != Login.Password) {
		return &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "credentials are missing"}
	}
	return nil
}

// Run checks that a node keeps the promises of [fleet.Node]. Those of the network
// between the roles, and of what a sandbox does inside, are tested elsewhere.
func Run(t *testing.T, h Host) {
	t.Helper()
	for name, check := range cases {
		t.Run(name, func(t *testing.T) {
			check(&bench{t, h.Node(t), h.Image, h.Private, h.Crew})
		})
	}
	RunBuilder(t, func(t *testing.T) fleet.Builder {
		t.Helper()
		return h.Node(t)
	})
}

// cases is the suite.
var cases = map[string]func(*bench){
	"a create can be repeated":                     createTwice,
	"a delete can be repeated":                     deleteTwice,
	"what is not there is known to be gone":        unknown,
	"statuses are those of what is there":          statuses,
	"a disabled sandbox does not wake":             disabled,
	"a sandbox sleeps and wakes when told to":      called,
	"a snapshot outlives its sandbox":              snapshots,
	"an archive comes back":                        archives,
	"volumes are made once, and dropped":           volumes,
	"a tar becomes a volume, or nothing":           imports,
	"limits hold, and claims count":                limits,
	"who is retired is so until it is reinstated":  retires,
	"logs outlive their sandboxes":                 logs,
	"errors keep their kinds":                      kinds,
	"images are checked":                           images,
	"images are fetched":                           fetches,
	"images are pinned":                            pins,
	"a network is set, asleep or awake":            networks,
	"a path has one drive":                         drives,
	"a sandbox departs, and returns or leaves":     moves,
	"a volume is saved when no sandbox has it":     savesVolumes,
	"a snapshot is saved":                          savesSnapshots,
	"an image that was built is saved":             savesBuilt,
	"a volume leaves for a later epoch":            leavesVolumes,
	"settings of what is not there change nothing": settings,
	"a call ends with its caller":                  canceled,
}

// bench is what one case works with.
type bench struct {
	*testing.T

	fleet.Node
	image, private string
	crew           bool
}

func (b *bench) order(uid string) fleet.Order {
	return fleet.Order{UID: uid, Name: uid, Workspace: "main", Image: b.image, Memory: 512, Network: new(doze.Network)}
}

func (b *bench) done(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) create(uid string) {
	b.Helper()
	b.done(b.Create(b.Context(), b.order(uid)))
}

// status returns what is known of a sandbox, and whether it is there.
func (b *bench) status(uid string) (fleet.Status, bool) {
	b.Helper()
	all, err := b.Statuses(b.Context(), []string{uid})
	b.done(err)
	st, ok := all[uid]
	return st, ok
}

// kind fails unless an error is of a kind.
func (b *bench) kind(err error, want doze.Kind) {
	b.Helper()
	if got := doze.Public(err).Kind; err == nil || got != want {
		b.Errorf("it is %v, want an error of the kind %s", err, want)
	}
}

func createTwice(b *bench) {
	b.create("a")
	if st, ok := b.status("a"); !ok || st.Phase != doze.Running {
		b.Fatalf("it is %+v, %t", st, ok)
	}
	if err := b.Create(b.Context(), b.order("a")); err != nil && doze.Public(err).Kind != doze.Conflict {
		b.Error("a second create:", err)
	}
	if st, ok := b.status("a"); !ok || st.Phase != doze.Running {
		b.Errorf("after a second create it is %+v, %t", st, ok)
	}
}

func deleteTwice(b *bench) {
	b.create("a")
	for range 2 {
		b.done(b.Delete(b.Context(), "a"))
		if st, ok := b.status("a"); ok {
			b.Fatalf("it is still there: %+v", st)
		}
	}
	b.create("a") // nothing of it is in the way
}

func unknown(b *bench) {
	ctx := b.Context()
	b.done(b.Delete(ctx, "nobody"))
	b.done(b.DropSnapshot(ctx, "nobody"))
	b.done(b.DropVolume(ctx, "nobody"))
	for what, do := range map[string]func() error{
		"disable":  func() error { return b.Disable(ctx, "nobody") },
		"enable":   func() error { return b.Enable(ctx, "nobody") },
		"snapshot": func() error { _, err := b.Snapshot(ctx, "nobody", "s"); return err },
		"archive":  func() error { _, err := b.Archive(ctx, "nobody"); return err },
	} {
		if err := do(); err == nil || errors.Is(err, fleet.ErrUnreachable) {
			b.Errorf("%s: %v, want that it is not there", what, err)
		}
	}
}

func statuses(b *bench) {
	b.create("a")
	b.create("b")
	all, err := b.Statuses(b.Context(), []string{"a", "b", "nobody"})
	b.done(err)
	if len(all) != 2 || all["a"].Phase != doze.Running || all["b"].Phase != doze.Running {
		b.Errorf("%+v", all)
	}
	if all, err = b.Statuses(b.Context(), nil); err != nil || len(all) != 0 {
		b.Errorf("of none it is %v, %v", all, err)
	}
	if traces, err := b.Traces(b.Context(), "a"); err != nil || len(traces) == 0 {
		b.Errorf("its create left the traces %v, %v", traces, err)
	}
	if traces, err := b.Traces(b.Context(), "nobody"); err != nil || len(traces) != 0 {
		b.Errorf("of nobody there are the traces %v, %v", traces, err)
	}
	for _, uid := range []string{"a", "nobody"} {
		if seen, err := b.Egress(b.Context(), uid); err != nil || seen.Destinations == nil {
			b.Errorf("the destinations of %s are %+v, %v", uid, seen, err)
		}
	}
	used, err := b.Consumption(b.Context(), []string{"a", "nobody"})
	b.done(err)
	if a, ok := used["a"]; len(used) != 1 || !ok || a.Tier != "awake" || a.MeasuredAt.IsZero() || a.CountedSince.After(a.MeasuredAt.Time) {
		b.Errorf("the sandboxes took %+v", used)
	}
	if used, err = b.Consumption(b.Context(), nil); err != nil || len(used) != 0 {
		b.Errorf("none of them took %v, %v", used, err)
	}
}

func called(b *bench) {
	b.create("a")
	for _, deep := range []bool{false, false, true, true} {
		b.done(b.Sleep(b.Context(), "a", deep))
		if st, _ := b.status("a"); st.Phase != doze.Standby || deep != (st.Tier == "disk") {
			b.Fatalf("it is %s, %s", st.Phase, st.Tier)
		}
	}
	for range 2 {
		b.done(b.Wake(b.Context(), "a"))
		if st, _ := b.status("a"); st.Phase != doze.Running {
			b.Fatalf("it is %s", st.Phase)
		}
	}
	b.done(b.Disable(b.Context(), "a"))
	for what, err := range map[string]error{
		"a wake of a disabled sandbox": b.Wake(b.Context(), "a"), "a sleep of a disabled sandbox": b.Sleep(b.Context(), "a", true),
	} {
		if doze.Public(err).Kind != doze.Conflict {
			b.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"a wake of nobody": b.Wake(b.Context(), "nobody"), "a sleep of nobody": b.Sleep(b.Context(), "nobody", false)} {
		if doze.Public(err).Kind != doze.NotFound {
			b.Errorf("%s: %v", what, err)
		}
	}
}

func disabled(b *bench) {
	b.create("a")
	for range 2 {
		b.done(b.Disable(b.Context(), "a"))
		if st, _ := b.status("a"); st.Phase != doze.Disabled {
			b.Fatalf("it is %s", st.Phase)
		}
	}
	for range 2 {
		b.done(b.Enable(b.Context(), "a"))
		if st, _ := b.status("a"); st.Phase == doze.Disabled {
			b.Fatalf("it is %s", st.Phase)
		}
	}
}

func snapshots(b *bench) {
	ctx := b.Context()
	b.create("a")
	bytes, err := b.Snapshot(ctx, "a", "s")
	b.done(err)
	if again, err := b.Snapshot(ctx, "a", "s"); err != nil || again != bytes {
		b.Errorf("again it takes %d bytes, %v, and not %d", again, err, bytes)
	}
	b.done(b.Delete(ctx, "a"))
	all, err := b.Snapshots(ctx)
	b.done(err)
	if got, ok := all["s"]; !ok || got != bytes || len(all) != 1 {
		b.Fatalf("there are %v", all)
	}
	o := b.order("copy")
	o.From = "s"
	b.done(b.Create(ctx, o))
	for range 2 {
		b.done(b.DropSnapshot(ctx, "s"))
	}
	if all, err := b.Snapshots(ctx); err != nil || len(all) != 0 {
		b.Errorf("there are %v, %v", all, err)
	}
	if st, ok := b.status("copy"); !ok || st.Phase.Ended() {
		b.Errorf("what was made of it is %+v, %t", st, ok)
	}
}

func archives(b *bench) {
	ctx := b.Context()
	b.create("a")
	bytes, err := b.Archive(ctx, "a")
	b.done(err)
	if again, err := b.Archive(ctx, "a"); err != nil || again != bytes {
		b.Errorf("again it takes %d bytes, %v, and not %d", again, err, bytes)
	}
	if st, _ := b.status("a"); st.Phase != doze.Archived {
		b.Fatalf("it is %s", st.Phase)
	}
	for range 2 {
		b.done(b.Unarchive(ctx, b.order("a")))
		if st, _ := b.status("a"); st.Phase == doze.Archived {
			b.Fatalf("it is %s", st.Phase)
		}
	}
}

func volumes(b *bench) {
	ctx := b.Context()
	for range 2 {
		b.done(b.MakeVolume(ctx, "v", 64, ""))
	}
	b.done(b.MakeVolume(ctx, "w", 64, "v"))
	b.done(b.ResizeVolume(ctx, "v", 128))
	all, err := b.Volumes(ctx)
	b.done(err)
	if slices.Sort(all); !slices.Equal(all, []string{"v", "w"}) {
		b.Errorf("there are %v", all)
	}
	for range 2 {
		b.done(b.DropVolume(ctx, "v"))
	}
	if all, err := b.Volumes(ctx); err != nil || !slices.Equal(all, []string{"w"}) {
		b.Errorf("there are %v, %v", all, err)
	}
}

func imports(b *bench) {
	const text = "hello"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	b.done(w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: int64(len(text))}))
	_, err := w.Write([]byte(text))
	b.done(errors.Join(err, w.Close()))
	n, err := b.ImportVolume(b.Context(), "v", 64, &archive)
	b.done(err)
	if n != int64(len(text)) {
		b.Errorf("its files have %d bytes", n)
	}
	if _, err = b.ImportVolume(b.Context(), "w", 64, bytes.NewReader([]byte("no tar at all, but longer than a header of one would be"))); err == nil {
		b.Error("what is no tar is taken for one")
	}
	if all, err := b.Volumes(b.Context()); err != nil || !slices.Equal(all, []string{"v"}) {
		b.Errorf("there are %v, %v", all, err)
	}
}

func limits(b *bench) {
	ctx := b.Context()
	b.done(b.SetLimits(ctx, "main", doze.Limits{doze.QuotaSandboxesAwake: 1}))
	b.create("a")
	now, err := b.Awake(ctx, "main")
	b.done(err)
	if now.Sandboxes != 1 || now.Memory != b.order("a").Memory {
		b.Errorf("awake are %+v", now)
	}
	err = b.Create(ctx, b.order("b"))
	b.kind(err, doze.Exhausted)
	if e := doze.Public(err); e.Name != doze.NameQuotaExceeded || e.Fields["quota"] != doze.QuotaSandboxesAwake {
		b.Errorf("it says %+v", e)
	}
	b.kind(b.Claim(ctx, b.order("b"), ""), doze.Exhausted)
	for range 2 {
		b.done(b.Claim(ctx, b.order("b"), "a")) // in its place
	}
	b.done(b.SetLimits(ctx, "main", nil))
	b.done(b.Delete(ctx, "b"))
}

func retires(b *bench) {
	ctx := b.Context()
	if ok, err := b.Retire(ctx, "nobody", time.Now()); err != nil || !ok {
		b.Errorf("who is not there is not retired: %t, %v", ok, err)
	}
	b.done(b.Reinstate(ctx, "nobody"))
	b.create("a")
	if ok, err := b.Retire(ctx, "a", time.Now().Add(-time.Hour)); err != nil || ok {
		b.Errorf("it was used since, and is retired: %t, %v", ok, err)
	}
	if ok, err := b.Retire(ctx, "a", time.Now().Add(time.Hour)); err != nil || !ok {
		b.Errorf("it was not used since, and is not retired: %t, %v", ok, err)
	}
	b.done(b.Reinstate(ctx, "a"))
}

func logs(b *bench) {
	ctx := b.Context()
	b.create("a")
	at := time.Now().Add(-time.Minute).UnixNano()
	event := func(text string, i int64) fleet.LogLine {
		return fleet.LogLine{LogPosition: fleet.LogPosition{At: at + i}, Severity: doze.LogInfo, Text: text}
	}
	b.done(b.Delete(ctx, "a"))
	ended := fleet.EndedLog{Machine: "a", Workspace: "main", Name: "a", Events: []fleet.LogLine{event("began", 0), event("ended", 1)}}
	other := fleet.EndedLog{Machine: "b", Workspace: "other", Name: "a", Events: []fleet.LogLine{event("elsewhere", 0)}}
	b.done(b.EndLogs(ctx, []fleet.EndedLog{ended, other}))
	q := fleet.LogQuery{Workspace: "main", Name: "a", Limit: 1, Bytes: 1 << 20}
	for _, want := range []string{"ended", "began"} {
		p, err := b.Logs(ctx, q)
		b.done(err)
		if len(p.Lines) != 1 || p.Lines[0].Text != want || p.More != (want == "ended") {
			b.Fatalf("the log is %+v, want %s", p, want)
		}
		q.Past = &p.Next
	}
	b.done(b.DropLogs(ctx, "main"))
	q.Past = nil
	if p, err := b.Logs(ctx, q); err != nil || len(p.Lines) != 0 {
		b.Errorf("when its workspace is gone the log is %+v, %v", p, err)
	}
	q.Workspace = "other"
	if p, err := b.Logs(ctx, q); err != nil || len(p.Lines) != 1 {
		b.Errorf("the log of another workspace is %+v, %v", p, err)
	}
}

func kinds(b *bench) {
	ctx := b.Context()
	b.done(b.MakeVolume(ctx, "large", 128, ""))
	if err := b.MakeVolume(ctx, "small", 64, "large"); err == nil {
		b.Error("a disk is copied to a smaller one")
	}
	err := b.UnmountDrive(ctx, "nobody", "/mnt")
	if err == nil || errors.Is(err, fleet.ErrUnreachable) || doze.Public(err).Message == "" {
		b.Errorf("unmount from nobody: %v", err)
	}
}

func images(b *bench) {
	b.done(b.CheckImage(b.Context(), b.image))
	b.invalidImage(b.CheckImage(b.Context(), "no image: at all"))
	b.done(b.ReleaseImage(b.Context(), "example.com/none@sha256:0"))
}

// invalidImage fails unless an error says that an image cannot be run.
func (b *bench) invalidImage(err error) {
	b.Helper()
	b.kind(err, doze.Invalid)
	if name := doze.Public(err).Name; name != doze.NameInvalidImage {
		b.Errorf("it is called %q", name)
	}
}

func fetches(b *bench) {
	ctx := b.Context()
	for range 2 {
		b.done(b.FetchImage(ctx, b.image, nil))
	}
	b.invalidImage(b.FetchImage(ctx, "no image: at all", nil))
	b.invalidImage(b.FetchImage(ctx, b.private, nil))
	b.done(b.FetchImage(ctx, b.private, &Login))
}

func pins(b *bench) {
	ctx := b.Context()
	pinned, err := b.PinImage(ctx, b.private, &Login)
	b.done(err)
	if pinned.Ref == "" || pinned.Bytes == 0 {
		b.Errorf("it is pinned as %+v", pinned)
	}
	if again, err := b.PinImage(ctx, b.private, &Login); err != nil || again.Ref != pinned.Ref {
		b.Errorf("again it is pinned as %+v, %v, and not as %+v", again, err, pinned)
	}
	_, err = b.PinImage(ctx, b.private, nil)
	b.invalidImage(err)
	_, err = b.PinImage(ctx, "no image: at all", nil)
	b.invalidImage(err)
}

// networks checks who may have a network. What a sandbox reaches then is tested with
// a real one.
func networks(b *bench) {
	ctx := b.Context()
	rules := &doze.Network{AllowedDomains: []string{"a.example"}}
	b.kind(b.SetNetwork(ctx, "nobody", rules), doze.NotFound)
	b.create("a")
	for range 2 {
		b.done(b.SetNetwork(ctx, "a", rules))
	}
	b.done(b.SetNetwork(ctx, "a", nil))
	b.done(b.Disable(ctx, "a"))
	b.done(b.SetNetwork(ctx, "a", rules))
	if st, _ := b.status("a"); st.Phase != doze.Disabled {
		b.Errorf("a new network made it %s", st.Phase)
	}
}

func drives(b *bench) {
	ctx := b.Context()
	m := fleet.DriveMount{DriveMount: doze.DriveMount{Drive: "shared", MountPath: "/mnt/x", DrivePath: "/"}, ID: "one", DriveID: "drive", UID: new(uint32(7))}
	_, err := b.MountDrive(ctx, "nobody", m)
	b.kind(err, doze.NotFound)
	b.create("a")
	for _, id := range []string{"one", "two"} {
		again := m
		again.ID = id
		got, err := b.MountDrive(ctx, "a", again)
		b.done(err)
		if !reflect.DeepEqual(got, m) {
			b.Errorf("asked for the mount %s, it has %+v, want %+v", id, got, m)
		}
	}
	other := m
	other.ID, other.DrivePath = "two", "/part"
	_, err = b.MountDrive(ctx, "a", other)
	b.kind(err, doze.Conflict)
	if all, err := b.DriveMounts(ctx, "a"); err != nil || !reflect.DeepEqual(all, []fleet.DriveMount{m}) {
		b.Errorf("mounted are %+v, %v", all, err)
	}
	if all, err := b.DriveUsers(ctx, "drive"); err != nil || !slices.Equal(all, []string{"a"}) {
		b.Errorf("the drive is used by %v, %v", all, err)
	}
	b.done(b.UnmountDrive(ctx, "a", "/mnt/x"))
	if all, err := b.DriveMounts(ctx, "a"); err != nil || len(all) != 0 {
		b.Errorf("unmounted, there are %+v, %v", all, err)
	}
	_, err = b.MountDrive(ctx, "a", m)
	b.done(err)
	b.done(b.Delete(ctx, "a"))
	if all, err := b.DriveUsers(ctx, "drive"); err != nil || len(all) != 0 {
		b.Errorf("the drive of a deleted sandbox is used by %v, %v", all, err)
	}
}

func moves(b *bench) {
	ctx := b.Context()
	b.create("a")
	b.done(b.Depart(ctx, "a"))
	b.done(b.Return(ctx, "a"))
	b.done(b.Wake(ctx, "a"))
	b.done(b.Depart(ctx, "a"))
	for range 2 {
		b.done(b.Leave(ctx, "a"))
	}
	if st, there := b.status("a"); there {
		b.Errorf("it has left, and is %+v", st)
	}
	err := b.Depart(ctx, "a")
	if b.kind(err, doze.NotFound); !errors.Is(err, fleet.ErrMoved) {
		b.Errorf("of what is not there nobody says that: %v", err)
	}
	b.done(b.Return(ctx, "nobody"))
	_, err = b.Revive(ctx, b.order("nobody"), time.Time{}, true)
	b.kind(err, doze.NotFound)
}

func savesVolumes(b *bench) {
	ctx := b.Context()
	b.kind(b.SaveVolume(ctx, "nobody"), doze.NotFound)
	b.done(b.MakeVolume(ctx, "v", 64, ""))
	for range 2 {
		b.done(b.SaveVolume(ctx, "v"))
	}
	o := b.order("a")
	o.Volumes = []fleet.Volume{{ID: "v", Path: "/v", Size: 64}}
	b.done(b.Create(ctx, o))
	b.kind(b.SaveVolume(ctx, "v"), doze.Unavailable)
	b.done(b.Delete(ctx, "a"))
	b.done(b.SaveVolume(ctx, "v"))
	if all, err := b.Volumes(ctx); err != nil || !slices.Equal(all, []string{"v"}) {
		b.Errorf("after it was saved there are %v, %v", all, err)
	}
}

func savesSnapshots(b *bench) {
	ctx := b.Context()
	b.kind(b.SaveSnapshot(ctx, "nobody"), doze.NotFound)
	b.create("a")
	_, err := b.Snapshot(ctx, "a", "s")
	b.done(err)
	b.done(b.Delete(ctx, "a"))
	for range 2 {
		b.done(b.SaveSnapshot(ctx, "s"))
	}
	if all, err := b.Snapshots(ctx); err != nil || len(all) != 1 {
		b.Errorf("after it was saved there are %v, %v", all, err)
	}
	o := b.order("copy")
	o.From = "s"
	b.done(b.Create(ctx, o))
}

func savesBuilt(b *bench) {
	ctx := b.Context()
	b.kind(b.SaveBuilt(ctx, doze.BuiltPrefix+"nobody@sha256:"+strings.Repeat("0", 64)), doze.NotFound)
	built, err := b.Build(ctx, fleet.BuildOrder{ID: "saved", Workspace: "main", WorkspaceID: "w-saved", Network: new(doze.Network)}, bytes.NewReader(Context(b.T)), func(fleet.BuildEvent) {})
	if doze.Public(err).Kind == doze.Unsupported {
		b.Skip("SKIPPED: the node builds nothing")
	}
	b.done(err)
	for range 2 {
		b.done(b.SaveBuilt(ctx, built.Ref))
	}
}

// leavesVolumes has a volume that was never on another node: its epoch is the second one at most.
func leavesVolumes(b *bench) {
	const never, later = 2, 3
	ctx := b.Context()
	for range 2 {
		b.done(b.LeaveVolume(ctx, "nobody", later))
	}
	b.done(b.MakeVolume(ctx, "v", 64, ""))
	for _, epoch := range []uint64{0, 1, never} {
		b.done(b.LeaveVolume(ctx, "v", epoch))
		if all, err := b.Volumes(ctx); err != nil || !slices.Equal(all, []string{"v"}) {
			b.Fatalf("it has left for the epoch %d: there are %v, %v", epoch, all, err)
		}
	}
	for range 2 {
		b.done(b.LeaveVolume(ctx, "v", later))
	}
	if all, err := b.Volumes(ctx); err != nil || slices.Contains(all, "v") != b.crew {
		b.Errorf("another node has it in the epoch %d, and there are %v, %v", later, all, err)
	}
}

func settings(b *bench) {
	ctx := b.Context()
	b.done(b.SetGrace(ctx, "nobody", time.Second))
	b.done(b.Consult(ctx, "nobody"))
	if all, err := b.DriveMounts(ctx, "nobody"); err != nil || len(all) != 0 {
		b.Errorf("nobody has the drives %v, %v", all, err)
	}
	if all, err := b.DriveUsers(ctx, "none"); err != nil || len(all) != 0 {
		b.Errorf("no drive is used by %v, %v", all, err)
	}
	if _, err := b.Usage(ctx); err != nil {
		b.Error(err)
	}
	if _, ok := b.status("nobody"); ok {
		b.Error("nobody is there")
	}
}

func canceled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if err := b.Create(ctx, b.order("a")); err == nil {
		b.Skip("this node is faster than its caller")
	} else if errors.Is(err, fleet.ErrUnreachable) {
		b.Error("who gives up is told that the node cannot be reached:", err)
	}
	b.done(b.Delete(b.Context(), "a"))
	if _, ok := b.status("a"); ok {
		b.Error("it is still there")
	}
}

// ReadTar is what a fake does with the tar of a volume: it returns how many bytes
// its files have, or an error that is Invalid.
func ReadTar(archive io.Reader) (bytes int64, err error) {
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return bytes, nil
		}
		if err != nil {
			return 0, doze.Wrap(err, doze.Invalid, "the archive is no tar")
		}
		bytes += h.Size
	}
}
