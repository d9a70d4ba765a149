package control_test

import (
	"archive/tar"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/store"
)

// disksOf are the sizes of what the node has.
func disksOf(p *planetest.Platform) []doze.Megabytes {
	p.Node.Mu.Lock()
	defer p.Node.Mu.Unlock()
	var sizes []doze.Megabytes
	for _, d := range p.Node.Disks {
		sizes = append(sizes, d.Size)
	}
	return slices.Sorted(slices.Values(sizes))
}

// with is the body of a sandbox with volumes.
func with(name, volumes string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"volumes":[` + volumes + `]}}`
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		v := planetest.Want[doze.Volume](p, 200, "POST", "/volumes", `{"metadata":{"name":"v","externalId":"ext"}}`)
		if v.Spec.Size != doze.VolumeDefault || v.Spec.Region != "here-1" || v.Status != "DEPLOYED" || v.State.AttachedTo != "" {
			t.Errorf("it is %+v", v)
		}
		planetest.Want[any](p, 409, "POST", "/volumes", planetest.Named("v"))
		for status, n := range map[string]int{"deployed": 1, "TERMINATED": 0, "failed,deleting": 0} {
			if got := planetest.Want[[]doze.Volume](p, 200, "GET", "/volumes?status="+status, ""); len(got) != n {
				t.Errorf("%s are %+v", status, got)
			}
		}
		planetest.Want[any](p, 400, "GET", "/volumes?status=asleep", "")
		if got := planetest.Want[doze.Volume](p, 200, "GET", "/volumes/by-external-id/ext", ""); got.Metadata.Name != "v" {
			t.Errorf("by its external id: %+v", got)
		}
		planetest.Want[any](p, 404, "GET", "/volumes/by-external-id/none", "")
		planetest.Want[any](p, 404, "PUT", "/volumes/none", `{}`)
		planetest.Want[any](p, 404, "DELETE", "/volumes/none", "")

		p.Create(with("a", `{"name":"v","mountPath":"/data"},{"name":"scratch","mountPath":"/scratch","type":"ephemeral","sizeMb":64,"readOnly":false}`))
		got := p.Node.Orders()[0].Volumes
		for i := range got {
			if (got[i].ID == "") != (i == 1) {
				t.Errorf("the volume %d has the id %q", i, got[i].ID)
			}
			got[i].ID = ""
		}
		if diff := cmp.Diff([]fleet.Volume{{Path: "/data", Size: 1024}, {Path: "/scratch", Size: 64}}, got); diff != "" {
			t.Errorf("the node gets (-want +got):\n%s", diff)
		}
		for call, body := range map[string]string{
			"DELETE /volumes/v":           "",
			"POST /sandboxes":             with("b", `{"name":"v","mountPath":"/data"}`),
			"POST /sandboxes/a/snapshots": `{}`, "POST /sandboxes/a/fork": `{"targetName":"c","targetType":"sandbox"}`,
			"DELETE /workspaces/main": "",
		} {
			method, path, _ := strings.Cut(call, " ")
			planetest.Want[any](p, 409, method, path, body)
		}
		planetest.Want[any](p, 404, "GET", "/sandboxes/b", "") // nothing is half created
		type lite struct{ Data []doze.Volume }
		list := planetest.Want[lite](p, 200, "GET", "/volumes?externalId=ext&status=deployed", "", "Blaxel-Version", "2026-04-28")
		if len(list.Data) != 1 || list.Data[0].State.AttachedTo != "sandbox:a" {
			t.Errorf("the list is %+v", list)
		}
		planetest.Want[any](p, 400, "GET", "/volumes?status=RUNNING", "")

		// What the disk has no room for leaves the size as it is, on record too: else
		// no sandbox could get the volume any more.
		p.Node.Set("resize", doze.Errorf(doze.Exhausted, "there is no room for 1 MB more of volumes"))
		planetest.Want[any](p, 429, "PUT", "/volumes/v", `{"spec":{"size":1025}}`)
		if v := planetest.Want[doze.Volume](p, 200, "GET", "/volumes/v", ""); v.Spec.Size != 1024 {
			t.Errorf("after a growth that failed it has %d MB", v.Spec.Size)
		}
		p.Node.Set("resize", nil)

		// A redeploy keeps it, and a growth is known to the next machine.
		planetest.Want[any](p, 200, "PUT", "/volumes/v", `{"spec":{"size":2048}}`)
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		orders := p.Node.Orders()
		if v := orders[len(orders)-1].Volumes[0]; v.ID == "" || v.Size != 2048 {
			t.Errorf("after a redeploy the node gets %+v", v)
		}
		planetest.Want[any](p, 400, "PUT", "/sandboxes/a", with("a", `{"name":"v","mountPath":"/elsewhere"}`))

		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Minute)
		p.Create(with("b", `{"name":"v","mountPath":"/other","readOnly":true}`))
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/b", "")
		planetest.After(time.Minute)
		var said []string
		for _, e := range planetest.Want[doze.Volume](p, 200, "GET", "/volumes/v", "").Events {
			said = append(said, e.Type+" "+e.Status+" "+e.Message)
		}
		if diff := cmp.Diff([]string{
			"deployment DEPLOYED the volume is ready", "notice DEPLOYED it is attached to the sandbox a",
			"notice DEPLOYED its size is 1025 MB now, it was 1024 MB; sandbox:a sees that on its next machine, after a redeploy or an archive",
			"notice DEPLOYED its size is 1024 MB now, it was 1025 MB; sandbox:a sees that on its next machine, after a redeploy or an archive",
			"notice DEPLOYED its size is 2048 MB now, it was 1024 MB; sandbox:a sees that on its next machine, after a redeploy or an archive",
			"notice DEPLOYED the sandbox a is gone: it is free", "notice DEPLOYED it is attached to the sandbox b", "notice DEPLOYED the sandbox b is gone: it is free",
		}, said); diff != "" {
			t.Errorf("its events: %s", diff)
		}
		if all := planetest.Want[lite](p, 200, "GET", "/volumes", "", "Blaxel-Version", "2026-04-28").Data; all[0].Events != nil {
			t.Errorf("a list has events: %+v", all)
		}
		for i := range doze.VolumeEventsMax {
			planetest.Want[any](p, 200, "PUT", "/volumes/v", `{"spec":{"size":`+strconv.Itoa(3000+i)+`}}`)
		}
		if all := planetest.Want[doze.Volume](p, 200, "GET", "/volumes/v", "").Events; len(all) != doze.VolumeEventsMax || !strings.Contains(all[len(all)-1].Message, "it was 3030") {
			t.Errorf("%d events: %+v", len(all), all)
		}
		planetest.Want[doze.Volume](p, 200, "DELETE", "/volumes/v", "")
		planetest.Want[any](p, 404, "GET", "/volumes/v", "")
		planetest.After(time.Minute)
		if left := disksOf(p); len(left) != 0 {
			t.Errorf("disks are left: %v", left)
		}
	})
}

// TestVolumeMistakes: every mistake is told, and all of one request at once.
func TestVolumeMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	many := strings.TrimSuffix(strings.Repeat(`{"name":"v","mountPath":"/v"},`, doze.AttachmentsMax+1), ",")
	for name, tt := range map[string]struct {
		call, body string
		says       []string
	}{
		"everything":     {"POST /volumes", `{"metadata":{"name":"V"},"spec":{"size":1,"region":"mars"}}`, []string{"metadata.name", "spec.size", "16", "spec.region", "here-1"}},
		"types":          {"POST /volumes", `{"metadata":{"name":"a"},"spec":{"size":"1G","template":7}}`, []string{"spec.size must be a whole number", "spec.template must be a string"}},
		"too large":      {"POST /volumes", `{"metadata":{"name":"a"},"spec":{"size":4194305}}`, []string{"spec.size"}},
		"no template":    {"POST /volumes", `{"metadata":{"name":"a"},"spec":{"template":"t:1","size":3}}`, []string{"spec.template", "no volume template", "spec.size"}},
		"odd template":   {"POST /volumes", `{"metadata":{"name":"a"},"spec":{"template":"T:../x"}}`, []string{"spec.template"}},
		"smaller":        {"PUT /volumes/v", `{"spec":{"size":512}}`, []string{"spec.size", "1024"}},
		"renamed":        {"PUT /volumes/v", `{"metadata":{"name":"w"},"spec":{"template":"t"}}`, []string{"metadata.name", "spec.template"}},
		"moved":          {"PUT /volumes/v", `{"spec":{"region":"mars"}}`, []string{"spec.region"}},
		"unknown":        {"POST /sandboxes", with("a", `{"name":"none","mountPath":"/v"}`), []string{"spec.volumes[0].name", "create it first"}},
		"attachment":     {"POST /sandboxes", with("a", `{"name":"V","mountPath":"v","type":"floppy"}`), []string{"spec.volumes[0].name", "spec.volumes[0].mountPath", "spec.volumes[0].type"}},
		"ephemeral":      {"POST /sandboxes", with("a", `{"name":"e","mountPath":"/e","type":"ephemeral"}`), []string{"spec.volumes[0].sizeMb is required"}},
		"ephemeral size": {"POST /sandboxes", with("a", `{"name":"e","mountPath":"/e","type":"ephemeral","sizeMb":1}`), []string{"spec.volumes[0].sizeMb"}},
		"root":           {"POST /sandboxes", with("a", `{"name":"v","mountPath":"/"}`), []string{"mountPath"}},
		"dots":           {"POST /sandboxes", with("a", `{"name":"v","mountPath":"/a/../b"}`), []string{"mountPath"}},
		"platform's":     {"POST /sandboxes", with("a", `{"name":"v","mountPath":"/proc/x"},{"name":"w","mountPath":"/var"},{"name":"x","mountPath":"/.doze"}`), []string{"/proc belongs", "/var/log/doze belongs", "/.doze belongs"}},
		"twice":          {"POST /sandboxes", with("a", `{"name":"v","mountPath":"/v"},{"name":"v","mountPath":"/v/w"}`), []string{"an earlier one has", "beside each other"}},
		"many":           {"POST /sandboxes", with("a", many), []string{"at most 8"}},
		"types inside":   {"POST /sandboxes", with("a", `{"name":1,"mountPath":true,"readOnly":"no","sizeMb":"1"}`), []string{"volumes[0].name must be a string", "volumes[0].readOnly must be true or false", "volumes[0].sizeMb must be a whole"}},
		"version":        {"POST /volume_templates?upload=true&version=latest", planetest.Named("t"), []string{"version"}},
		"template":       {"POST /volume_templates", `{"metadata":{"name":"t"},"spec":{"defaultSize":1,"description":"` + strings.Repeat("d", 1025) + `"}}`, []string{"spec.defaultSize", "spec.description"}},
		"no name":        {"POST /volume_templates", `{}`, []string{"metadata.name is required"}},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(tt.call, " ")
			w := p.Do(method, path, tt.body)
			planetest.CheckError(t, w)
			if w.Code != 400 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for _, s := range tt.says {
				if !strings.Contains(w.Body.String(), s) {
					t.Errorf("%s does not say %q", w.Body, s)
				}
			}
		})
	}
	if got := planetest.Want[[]any](p, 200, "GET", "/sandboxes", ""); len(got) > 0 {
		t.Errorf("sandboxes were created: %v", got)
	}
	if n := len(p.Node.Disks); n != 1 {
		t.Errorf("the node has %d disks", n)
	}
}

// TestVolumesAfterCrash has nodes that fail, and records and disks that do not
// agree.
func TestVolumesAfterCrash(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Node.Set("volume", doze.Errorf(doze.Unsupported, "this host cannot"))
		planetest.Want[any](p, 501, "POST", "/volumes", planetest.Named("v"))
		p.Node.Set("volume", errors.New("disk sda is on fire"))
		planetest.Want[any](p, 500, "POST", "/volumes", planetest.Named("v"))
		p.Node.Set("volume", nil)
		planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))

		// A start that does not work frees it, in the end.
		p.Node.Set("create", doze.Errorf(doze.Unavailable, "the node restarts"))
		planetest.Want[any](p, 503, "POST", "/sandboxes", with("a", `{"name":"v","mountPath":"/v"}`))
		p.Node.Set("create", nil)
		planetest.After(time.Minute)
		p.Create(with("a", `{"name":"v","mountPath":"/v"}`))

		p.Node.Disks["abcdef"] = planetest.Disk{Size: 1} // of no record
		half := store.Volume{ID: "half"}
		half.Metadata = doze.Metadata{Name: "half", Workspace: "main"}
		if err := p.Store.InsertVolume(t.Context(), half); err != nil { // and a record whose disk was being made
			t.Fatal(err)
		}
		planetest.Want[any](p, 404, "GET", "/volumes/half", "")
		p.Reopen()
		planetest.After(time.Minute)
		if got := disksOf(p); !slices.Equal(got, []doze.Megabytes{doze.VolumeDefault}) {
			t.Errorf("the node has disks of %v", got)
		}
		if got := planetest.Want[doze.Volume](p, 200, "GET", "/volumes/v", ""); got.State.AttachedTo != "sandbox:a" {
			t.Errorf("it is %+v", got)
		}
		planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("half")) // its name is free
	})
}

// TestVolumeForOne has many sandboxes want one volume at once.
func TestVolumeForOne(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for i := range 8 {
		wg.Go(func() {
			w := p.Do("POST", "/sandboxes", with("s"+strconv.Itoa(i), `{"name":"v","mountPath":"/v"}`))
			mu.Lock()
			defer mu.Unlock()
			answers[w.Code]++
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[int]int{200: 1, 409: 7}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if n := p.Node.Ordered(); n != 1 {
		t.Errorf("the node got %d orders", n)
	}
}

func TestVolumeTemplates(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		// offered asks for an upload and returns the path of its address.
		offered := func(method, path string) string {
			w := p.Do(method, path, `{"metadata":{"name":"t"},"spec":{"defaultSize":64}}`)
			address, ok := strings.CutPrefix(w.Header().Get("X-Blaxel-Upload-Url"), planetest.Base)
			if w.Code != http.StatusOK || !ok {
				t.Fatalf("%s %s: %d %s, %q", method, path, w.Code, w.Body, address)
			}
			return address
		}
		first := offered("POST", "/volume_templates?upload=true")
		planetest.Want[any](p, 409, "POST", "/volume_templates", planetest.Named("t"))
		made := planetest.Want[doze.VolumeTemplate](p, 200, "PUT", "/volume_templates/new", `{"spec":{"description":"d"}}`)
		if again := planetest.Want[doze.VolumeTemplate](p, 200, "PUT", "/volume_templates/new", `{"metadata":{"displayName":"New"}}`); made.Metadata.CreatedAt.IsZero() ||
			again.Spec != made.Spec || again.Metadata.DisplayName != "New" || !again.Metadata.CreatedAt.Equal(made.Metadata.CreatedAt.Time) {
			t.Errorf("made by a PUT: %+v, then %+v", made, again)
		}
		planetest.Want[any](p, 400, "PUT", "/volume_templates/New", `{}`)
		planetest.Want[any](p, 400, "PUT", "/volume_templates/other", planetest.Named("new"))
		planetest.Want[any](p, 404, "GET", "/volume_templates/other", "")
		planetest.Want[any](p, 200, "DELETE", "/volume_templates/new", "")
		planetest.Want[any](p, 400, "POST", "/volumes", `{"metadata":{"name":"v"},"spec":{"template":"t"}}`) // nothing is there yet
		for _, address := range []string{"/uploads/none?token=x", first + "x", strings.Split(first, "?")[0]} {
			planetest.Want[any](p, 404, "PUT", address, "files", "Authorization", "")
		}
		planetest.Want[any](p, 400, "PUT", first, "nonsense", "Authorization", "")
		if got := planetest.Want[doze.VolumeTemplate](p, 200, "GET", "/volume_templates/t", ""); got.Versions[0].Status != doze.VersionFailed || got.State.Status != "created" {
			t.Errorf("after a bad upload it is %+v", got)
		}
		planetest.Want[any](p, 200, "PUT", first, tarOf(t, "one"), "Authorization", "")
		planetest.Want[any](p, 409, "PUT", first, tarOf(t, "two"), "Authorization", "")
		planetest.After(time.Second)
		// Of some at once, one hears that its files are there.
		address, codes, two := offered("PUT", "/volume_templates/t?upload=true"), make(chan int, 4), tarOf(t, "two")
		for range cap(codes) {
			go func() { codes <- p.Do("PUT", address, two, "Authorization", "").Code }()
		}
		heard := map[int]int{}
		for range cap(codes) {
			heard[<-codes]++
		}
		if heard[200] != 1 || heard[409] != cap(codes)-1 {
			t.Errorf("uploads at once: %v", heard)
		}
		offered("PUT", "/volume_templates/t?upload=true&version=v3") // and nothing comes
		planetest.Want[any](p, 409, "PUT", "/volume_templates/t?upload=true&version=v3", `{}`)

		got := planetest.Want[[]doze.VolumeTemplate](p, 200, "GET", "/volume_templates", "")[0]
		if got.State.LatestVersion != "2" || got.State.VersionCount != 3 || got.State.Status != "ready" || got.Spec.DefaultSize != 64 {
			t.Errorf("it is %+v", got)
		}
		contents := map[string]string{"t": "two", "t:latest": "two", "t:1": "one", "t:2": "two"}
		for version, text := range contents {
			body := `{"metadata":{"name":"` + strings.ReplaceAll(version, ":", "-") + `"},"spec":{"template":"` + version + `"}}`
			if v := planetest.Want[doze.Volume](p, 200, "POST", "/volumes", body); v.Spec.Size != 64 {
				t.Errorf("%s has %d MB", version, v.Spec.Size)
			}
			if !slices.ContainsFunc(slices.Collect(maps.Values(p.Node.Disks)), func(d planetest.Disk) bool { return d.Content == tarOf(t, text) }) {
				t.Errorf("%s has not %q", version, text)
			}
		}
		planetest.Want[any](p, 400, "POST", "/volumes", `{"metadata":{"name":"w"},"spec":{"template":"t:v3"}}`)
		planetest.Want[any](p, 400, "POST", "/volumes", `{"metadata":{"name":"w"},"spec":{"template":"t:9"}}`)
		planetest.Want[any](p, 400, "POST", "/volumes", `{"metadata":{"name":"w"},"spec":{"template":"t","size":32}}`)

		planetest.Want[any](p, 404, "DELETE", "/volume_templates/t/versions/9", "")
		planetest.Want[any](p, 200, "DELETE", "/volume_templates/t/versions/2", "")
		planetest.Want[any](p, 200, "DELETE", "/volume_templates/t/versions/v3", "")
		planetest.Want[any](p, 400, "DELETE", "/volume_templates/t/versions/1", "") // the only one
		planetest.Want[any](p, 200, "DELETE", "/volume_templates/t", "")
		planetest.Want[any](p, 404, "GET", "/volume_templates/t", "")
		planetest.After(time.Minute)
		if n := len(disksOf(p)); n != len(contents) { // the volumes live on
			t.Errorf("the node has %d disks", n)
		}
	})
}

// tarOf is a tar with one file that has a text.
func tarOf(tb testing.TB, text string) string {
	tb.Helper()
	var archive strings.Builder
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	return archive.String()
}
