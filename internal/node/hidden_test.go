package node_test

import (
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/node/descent"
)

// hiddenOrder is that of a machine of the platform.
func hiddenOrder(p *process) fleet.Order {
	o := order(p.Hidden().UID("one"))
	o.Image, o.Memory = "", 1024
	o.Network = &doze.Network{AllowedDomains: []string{"a.example"}}
	return o
}

// builderFile is the root file system of a machine of the platform.
func (h *host) builderFile() string { return filepath.Join(h.dir, imageFile) }

// hiddenCall makes a request to a machine of the platform.
func hiddenCall(p *process, uid string) (string, error) {
	r, err := http.NewRequestWithContext(p.h.t.Context(), http.MethodGet, "http://x/", nil)
	if err != nil {
		return "", err
	}
	resp, err := p.Hidden().Transport(uid, appPort).RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

// TestHidden: a machine of the platform lives as a sandbox does, and nobody hears of it.
func TestHidden(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		boots := map[string][]string{}
		next := h.Handler
		h.Handler = func(c machine.Config, port uint16) http.Handler { boots[c.ID] = c.Env; return next(c, port) }
		p := h.start()
		ctx, o := t.Context(), hiddenOrder(p)
		uid := o.UID
		if err := p.Node.SetLimits(ctx, "main", doze.Limits{doze.QuotaSandboxesAwake: 1}); err != nil {
			t.Fatal(err)
		}
		if err := p.Hidden().Create(ctx, o, h.builderFile()); err != nil {
			t.Fatal(err)
		}
		if err := p.Create(ctx, order("a")); err != nil { // it has the only place of its workspace
			t.Fatal(err)
		}
		if got := boots[uid]; !slices.Contains(got, "DOZE_BUILDER=1") || slices.Contains(boots["a"], "DOZE_BUILDER=1") {
			t.Errorf("the agents are started with %q and %q", got, boots["a"])
		}
		all := p.Hidden().All()
		if m := all[uid]; len(all) != 1 || m.Phase != doze.Running || m.Root != h.builderFile() || m.Memory != 1<<30 {
			t.Errorf("there are %+v", all)
		}
		if n := h.obeyed(uid); n == nil || !slices.Equal(n.AllowedDomains, []string{"a.example"}) {
			t.Errorf("its network is %+v", n)
		}
		if files, known := p.Agents(); !known || !slices.Contains(files, h.builderFile()) {
			t.Errorf("the files that are needed are %v", files)
		}

		time.Sleep(pauseAfter + diskAfter + time.Second)
		if m := p.Hidden().All()[uid]; m.Phase != doze.Standby || m.Tier != "disk" {
			t.Errorf("unused, it is %s, %s", m.Phase, m.Tier)
		}
		if err := p.Hidden().SetNetwork(ctx, uid, new(doze.Network)); err != nil {
			t.Error(err)
		}
		if got, err := hiddenCall(p, uid); err != nil || got != "hello" {
			t.Errorf("it answers %q, %v", got, err)
		}
		release, err := p.Hidden().Hold(ctx, uid)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if m := p.Hidden().All()[uid]; m.Phase != doze.Running || len(h.obeyed(uid).AllowedDomains) != 0 {
			t.Errorf("held, it is %s, with the network %+v", m.Phase, h.obeyed(uid))
		}
		release()

		if told := h.told(uid); len(told) != 0 {
			t.Errorf("control was told %+v", told)
		}
		for range 2 {
			if err := p.Hidden().Delete(ctx, uid); err != nil {
				t.Fatal(err)
			}
		}
		h.empty(uid)
		if all := p.Hidden().All(); len(all) != 0 {
			t.Errorf("deleted, there is %+v", all)
		}
		p.hello("a")
	})
}

// TestHiddenIsHidden: no call that names a sandbox finds a machine of the platform, and
// none makes one.
func TestHiddenIsHidden(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		ctx, o := t.Context(), hiddenOrder(p)
		uid := o.UID
		h.kind(p.Create(ctx, o), doze.Invalid, "platform")
		if err := p.Hidden().Create(ctx, order("a"), h.builderFile()); err == nil {
			t.Error("a sandbox is hidden")
		}
		h.empty("a")
		if err := p.Hidden().Create(ctx, o, h.builderFile()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.call(ctx, uid, appPort); err == nil {
			t.Error("the edge reaches it")
		}
		if _, err := p.Dial(ctx, uid, appPort); err == nil {
			t.Error("a tunnel reaches it")
		}
		_, archive := p.Archive(ctx, uid)
		_, snapshot := p.Snapshot(ctx, uid, "s")
		_, mount := p.MountDrive(ctx, uid, fleet.DriveMount{ID: "one"})
		for what, err := range map[string]error{
			"archive": archive, "snapshot": snapshot, "mount": mount, "disable": p.Disable(ctx, uid), "sleep": p.Sleep(ctx, uid, true),
			"wake": p.Wake(ctx, uid), "network": p.SetNetwork(ctx, uid, nil),
		} {
			if err == nil {
				t.Errorf("%s finds it", what)
			}
		}
		if err := p.Delete(ctx, uid); err != nil { // a sandbox that is not there is no error
			t.Error(err)
		}
		statuses, err := p.Statuses(ctx, []string{uid})
		if err != nil || len(statuses) != 0 {
			t.Errorf("its status is %+v, %v", statuses, err)
		}
		used, err := p.Consumption(ctx, []string{uid})
		if err != nil || len(used) != 0 {
			t.Errorf("it takes %+v, %v", used, err)
		}
		if all := p.Consumers(ctx); len(all) != 0 {
			t.Errorf("metrics name %+v", all)
		}
		if now, err := p.Node.Awake(ctx, "main"); err != nil || now.Sandboxes != 0 {
			t.Errorf("awake are %+v, %v", now, err)
		}
		if all := p.Costs(ctx); len(all) != 1 {
			t.Errorf("the memory of the host is that of %d machines", len(all))
		}
		if got, err := hiddenCall(p, uid); err != nil || got != "hello" {
			t.Errorf("it answers %q, %v", got, err)
		}
		if told := h.told(uid); len(told) != 0 {
			t.Errorf("control was told %+v", told)
		}
	})
}

// TestHiddenAdopted: the next process finds a machine of the platform, with no network
// until somebody says what it may reach.
func TestHiddenAdopted(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		o := hiddenOrder(p)
		if err := p.Hidden().Create(t.Context(), o, h.builderFile()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.stop()
		p = h.start()
		m := p.Hidden().All()[o.UID]
		if m.Phase != doze.Standby || m.Root != h.builderFile() || m.Agent != "agent" {
			t.Errorf("it is adopted as %+v", m)
		}
		if got, err := hiddenCall(p, o.UID); err != nil || got != "hello" {
			t.Errorf("it answers %q, %v", got, err)
		}
		if n := h.obeyed(o.UID); n != nil {
			t.Errorf("it has the network %+v before anybody said so", n)
		}
		if told := h.told(o.UID); len(told) != 0 {
			t.Errorf("control was told %+v", told)
		}
	})
}

// TestHiddenSchedule: a machine of the platform is paused for longer before its
// checkpoint is written, but not beyond what is due on disk.
func TestHiddenSchedule(t *testing.T) {
	for _, tt := range []struct{ save, disk, want time.Duration }{
		{5 * time.Second, time.Hour, 5 * time.Minute},
		{5 * time.Second, time.Minute, time.Minute},
		{5 * time.Second, 2 * time.Second, 5 * time.Second},
		{0, time.Minute, 0},
	} {
		got := node.HiddenSchedule(descent.Schedule{Pause: time.Second, Save: tt.save, Swap: time.Minute, Disk: tt.disk})
		if want := (descent.Schedule{Pause: time.Second, Save: tt.want, Swap: time.Minute, Disk: tt.disk}); got != want {
			t.Errorf("save after %v, disk after %v: %+v, want %+v", tt.save, tt.disk, got, want)
		}
	}
}
