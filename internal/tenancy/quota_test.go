package tenancy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// An operation takes the last of a quota; of many callers at a time, one gets it.
type operation struct {
	quota   string
	prepare func(*planetest.Platform)
	more    int64 // that each takes
	// call is the i-th caller, and left what finds nothing of it if it was refused.
	call func(p *planetest.Platform, i int) (answer *httptest.ResponseRecorder, left string)
}

func post(path, body string, left func(i int) string) func(*planetest.Platform, int) (*httptest.ResponseRecorder, string) {
	return func(p *planetest.Platform, i int) (*httptest.ResponseRecorder, string) {
		in := strings.ReplaceAll(body, "%d", fmt.Sprint(i))
		return p.DoAs(p.T.Context(), "POST", path, in), left(i)
	}
}

func at(prefix string) func(int) string { return func(i int) string { return prefix + fmt.Sprint(i) } }

func nowhere(int) string { return "" }

// operations are every way to take more of a quota that records or the node
// count, by name.
var operations = map[string]operation{
	"create": {doze.QuotaSandboxes, nil, 1, post("/sandboxes", planetest.Named("n%d"), at("/sandboxes/n"))},
	"createIfNotExist": {
		doze.QuotaSandboxes, nil, 1, post("/sandboxes?createIfNotExist=true", planetest.Named("n%d"), at("/sandboxes/n")),
	},
	"fork a sandbox": {
		doze.QuotaSandboxes, func(p *planetest.Platform) { p.Create(planetest.Named("a")) }, 1,
		post("/sandboxes/a/fork", `{"targetName":"f%d","targetType":"sandbox"}`, at("/sandboxes/f")),
	},
	"fork a snapshot": {
		doze.QuotaSandboxes, snapshotOfA, 1,
		post("/snapshots/s/fork", `{"targetName":"f%d","targetType":"sandbox"}`, at("/sandboxes/f")),
	},
	"create one awake": {doze.QuotaSandboxesAwake, nil, 1, post("/sandboxes", planetest.Named("n%d"), at("/sandboxes/n"))},
	"fork one awake": {
		doze.QuotaSandboxesAwake, snapshotOfA, 1,
		post("/snapshots/s/fork", `{"targetName":"f%d","targetType":"sandbox"}`, at("/sandboxes/f")),
	},
	"create one with memory": {
		doze.QuotaMemoryAwake, nil, 1024,
		post("/sandboxes", `{"metadata":{"name":"n%d"},"spec":{"runtime":{"memory":1024}}}`, at("/sandboxes/n")),
	},
	"create a volume": {doze.QuotaVolumes, nil, 1, post("/volumes", planetest.Named("v%d"), at("/volumes/v"))},
	"create a large volume": {
		doze.QuotaVolumesSize, nil, 2048, post("/volumes", `{"metadata":{"name":"v%d"},"spec":{"size":2048}}`, at("/volumes/v")),
	},
	"grow a volume": {
		doze.QuotaVolumesSize, func(p *planetest.Platform) {
			for i := range callers {
				planetest.Want[any](p, 200, "POST", "/volumes", fmt.Sprintf(`{"metadata":{"name":"v%d"},"spec":{"size":1024}}`, i))
			}
		}, 1024, func(p *planetest.Platform, i int) (*httptest.ResponseRecorder, string) {
			return p.DoAs(p.T.Context(), "PUT", fmt.Sprint("/volumes/v", i), `{"spec":{"size":2048}}`), ""
		},
	},
	"create a volume on the disk": {
		doze.QuotaDisk, nil, 2048, post("/volumes", `{"metadata":{"name":"v%d"},"spec":{"size":2048}}`, at("/volumes/v")),
	},
	"add a version of a template": {
		doze.QuotaDisk, nil, 64, post("/volume_templates?upload=true", `{"metadata":{"name":"t%d"},"spec":{"defaultSize":64}}`, at("/volume_templates/t")),
	},
	"pull an image": {doze.QuotaDisk, nil, 1, post("/images", `{"name":"own-%d","image":"hub.test/app%d:1"}`, at("/images/sandbox/own-"))},
	"take a snapshot": {
		doze.QuotaSnapshots, func(p *planetest.Platform) { p.Create(planetest.Named("a")) }, 1,
		post("/snapshots", `{"name":"s%d","source":{"name":"a","kind":"sandbox"}}`, at("/snapshots/s")),
	},
	"make a key": {doze.QuotaKeys, nil, 1, post("/api_keys", `{"name":"k%d"}`, nowhere)},
	"make a key of a service account": {
		doze.QuotaKeys, nil, 1, func(p *planetest.Platform, i int) (*httptest.ResponseRecorder, string) {
			return p.DoAs(p.T.Context(), "POST", "/service_accounts/"+newAccount(p)+"/api_keys", `{"name":"k"}`), ""
		},
	},
}

// elsewhere are the tests of quotas that are not about what is created.
var elsewhere = map[string]string{
	doze.QuotaConnections: "internal/edge: TestOneWorkspaceIsFull",
	doze.QuotaRequests:    "TestRequestsOfAWorkspace",
	doze.QuotaEgress:      "internal/quota: TestEgress, TestEgressOutlivesTheProcess",
}

const callers = 20

func snapshotOfA(p *planetest.Platform) {
	p.Create(planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"s"}`)
}

// newAccount is the id of the one service account.
func newAccount(p *planetest.Platform) string {
	w := p.DoAs(p.T.Context(), "GET", "/service_accounts", "")
	var all []doze.ServiceAccount
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 {
		p.T.Errorf("%v: %s", err, w.Body)
		return ""
	}
	return all[0].ClientID
}

// quotaOf is the state of a quota of the workspace "main".
func quotaOf(p *planetest.Platform, name string) doze.QuotaStatus {
	p.T.Helper()
	all := planetest.Want[[]doze.QuotaStatus](p, 200, "GET", "/quotas", "")
	i := slices.IndexFunc(all, func(q doze.QuotaStatus) bool { return q.Name == name })
	if i < 0 {
		p.T.Fatalf("there is no %s in %v", name, all)
	}
	return all[i]
}

// TestQuotasUnderConcurrency is the matrix of quotas and operations: many callers
// come for the last place, one gets it, and of the others nothing is left.
func TestQuotasUnderConcurrency(t *testing.T) {
	t.Parallel()
	covered := slices.Collect(maps.Keys(elsewhere))
	for _, o := range operations {
		covered = append(covered, o.quota)
	}
	slices.Sort(covered)
	all := doze.QuotaNames()
	slices.Sort(all)
	if diff := cmp.Diff(all, slices.Compact(covered)); diff != "" {
		t.Errorf("quotas, and those with a test: %s", diff)
	}
	for kind, database := range map[string]func(t *testing.T) string{
		"sqlite":   func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "doze.db") },
		"postgres": func(t *testing.T) string { t.Helper(); return postgres.Database(t) },
	} {
		for name, o := range operations {
			t.Run(kind+"/"+name, func(t *testing.T) {
				if kind == "postgres" && testing.Short() {
					t.Skip("SKIPPED: with -short, one database is enough")
				}
				p := planetest.StartOn(t, database(t), true)
				planetest.Want[any](p, 200, "POST", "/service_accounts", `{"name":"a"}`)
				if o.prepare != nil {
					o.prepare(p)
				}
				o.try(p)
			})
		}
	}
}

func (o operation) try(p *planetest.Platform) {
	t := p.T
	before := quotaOf(p, o.quota)
	limit := before.Used + o.more
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", fmt.Sprintf(`{"quotas":{"%s":%d}}`, o.quota, limit))
	snapshots := quotaOf(p, doze.QuotaSnapshots).Used

	answers, left := make([]*httptest.ResponseRecorder, callers), make([]string, callers)
	var calls sync.WaitGroup
	for i := range callers {
		calls.Go(func() { answers[i], left[i] = o.call(p, i) })
	}
	calls.Wait()

	won := 0
	for i, w := range answers {
		if w.Code == 200 {
			won++
			if left[i] != "" {
				planetest.Want[any](p, 200, "GET", left[i], "")
			}
			continue
		}
		var e struct {
			Error, Quota string
			Used, Limit  int64
		}
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 429 {
			t.Fatalf("%v: %d %s", err, w.Code, w.Body)
		}
		if e.Error != doze.NameQuotaExceeded || e.Quota != o.quota || e.Used != limit || e.Limit != limit {
			t.Errorf("refused with %s", w.Body)
		}
		row, _ := doze.QuotaOf(o.quota)
		if final := w.Header().Get("x-should-retry") == "false"; final == row.Passes {
			t.Errorf("clients are told not to repeat it: %v", final)
		}
		if left[i] != "" {
			planetest.Want[any](p, 404, "GET", left[i], "")
		}
	}
	after := quotaOf(p, o.quota)
	if won != 1 || after.Used != limit || after.Limit != limit || after.Default != before.Default {
		t.Errorf("%d callers got the last place, and now there is %+v", won, after)
	}
	if o.quota != doze.QuotaSnapshots {
		if n := quotaOf(p, doze.QuotaSnapshots).Used; n > snapshots+1 {
			t.Errorf("forks that were refused left %d snapshots", n-snapshots)
		}
	}
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", fmt.Sprintf(`{"quotas":{"%s":null}}`, o.quota))
	if after := quotaOf(p, o.quota); after.Limit != before.Default {
		t.Errorf("with its limit taken back: %+v", after)
	}
	if w, _ := o.call(p, callers-1); w.Code == 429 {
		t.Errorf("with its limit taken back: %s", w.Body)
	}
}

// TestRequestsOfAWorkspace has many callers send the last request of the burst,
// to several routes; other workspaces do not notice.
func TestRequestsOfAWorkspace(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		const limit = 5
		planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"second"}`)
		other := planetest.Want[doze.APIKey](p, 200, "POST", "/api_keys", `{"name":"k"}`, "X-Blaxel-Workspace", "second").Key
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"requestsPerSecond":5}}`)
		for range 2*limit - 1 {
			planetest.Want[any](p, 200, "GET", "/volumes", "")
		}
		codes := make([]int, callers)
		var calls sync.WaitGroup
		for i := range callers {
			calls.Go(func() {
				w := p.DoAs(p.T.Context(), "GET", "/sandboxes", "")
				codes[i] = w.Code
				if w.Code == 429 && (!strings.Contains(w.Body.String(), doze.QuotaRequests) || w.Header().Get("Retry-After") != "1" || w.Header().Get("x-should-retry") != "") {
					p.T.Errorf("%v %s", w.Header(), w.Body)
				}
			})
		}
		calls.Wait()
		slices.Sort(codes)
		if codes[0] != 200 || codes[1] != 429 {
			p.T.Errorf("answers to callers for the last place: %v", codes)
		}
		if w := p.Do("GET", "/nowhere", ""); w.Code != 429 {
			p.T.Errorf("a path that does not exist is %d: a caller may try those without limit", w.Code)
		}
		w := p.Do("GET", "/sandboxes", "", planetest.As(other)...)
		if w.Code != 200 || w.Header().Get("RateLimit-Limit") != "" { // no limit of keys is set here
			p.T.Errorf("another workspace: %d %v", w.Code, w.Header())
		}
	})
}

func TestQuotasAreTheOperators(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	_, member := joinAs(p, "m@w.test", "member")
	_, tenant := joinAs(p, "t@w.test", "member")
	planetest.Want[any](p, 200, "PUT", "/platform/users/t@w.test", `{"workspaceCreator":true}`)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"theirs"}`, planetest.As(tenant)...)
	theirs := append(planetest.As(tenant), "X-Blaxel-Workspace", "theirs")

	if all := planetest.Want[[]doze.QuotaStatus](p, 200, "GET", "/quotas", "", planetest.As(member)...); len(all) != len(doze.Quotas) {
		t.Errorf("a member sees %v", all)
	}
	for _, who := range [][]string{planetest.As(member), theirs, planetest.As(p.KeyFor("other", time.Time{}, access.Admin))} {
		if w := p.Do("PUT", "/workspaces/theirs/quotas", `{"quotas":{"sandboxes":1}}`, who...); w.Code != 403 && w.Code != 404 {
			t.Errorf("%v: %d %s", who, w.Code, w.Body)
		}
	}
	// An operator need not be a member of theirs.
	planetest.Want[any](p, 200, "PUT", "/workspaces/theirs/quotas", `{"quotas":{"sandboxes":1}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("a"), theirs...)
	planetest.Want[any](p, 429, "POST", "/sandboxes", planetest.Named("b"), theirs...)
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("b"))
	p.Reopen()
	planetest.Want[any](p, 429, "POST", "/sandboxes", planetest.Named("b"), theirs...)
	id := planetest.Want[doze.Workspace](p, 200, "GET", "/workspaces/theirs", "", theirs...).ID
	if all := planetest.Want[[]doze.QuotaStatus](p, 200, "GET", "/workspaces/"+id+"/quotas", ""); all[0].Used != 1 || all[0].Limit != 1 {
		t.Errorf("by its id: %+v", all[0])
	}
	planetest.Want[any](p, 404, "GET", "/workspaces/none/quotas", "")

	for body, says := range map[string]string{
		`{}`:                                  "quotas is required",
		`{"quotas":{}}`:                       "quotas is required",
		`{"quotas":7}`:                        "quotas must be an object",
		`{"quotas":{"sandboxes":"7"}}`:        "quotas.sandboxes must be a whole number",
		`{"quotas":{"sandboxes":-1,"x":1}}`:   "quotas.x is no quota; there are sandboxes, ",
		`{"quotas":{"sandboxes":-1,"y":1}}`:   "quotas.sandboxes is -1",
		`{"quotas":{"requestsPerSecond":0}}`:  "must be 1 to",
		`{"quotas":{"nothing":null}}`:         "quotas.nothing is no quota",
		`{"quotas":{"keys":123456789012345}}`: "must be 0 to",
	} {
		if w := p.Do("PUT", "/workspaces/theirs/quotas", body); w.Code != 400 || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

// TestAFreshMachineTakesThePlaceOfTheOld: at the limit of what may be awake, a
// sandbox that is awake can be redeployed and restored.
func TestAFreshMachineTakesThePlaceOfTheOld(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	snapshotOfA(p)
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"sandboxesAwake":1}}`)
	planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":1024}}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots/s/restore", "")
	if q := quotaOf(p, doze.QuotaSandboxesAwake); q.Used > 2 {
		t.Errorf("%+v", q)
	}
	planetest.Want[any](p, 429, "POST", "/sandboxes", planetest.Named("b"))

	// One that sleeps needs room, and stays as it is without.
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"sandboxesAwake":0}}`)
	now, err := p.Store.SandboxByName(t.Context(), "main", "a")
	if err != nil {
		t.Fatal(err)
	}
	p.Node.Mu.Lock()
	p.Node.Move(now.Machine, doze.Standby, "")
	p.Node.Mu.Unlock()
	planetest.Want[any](p, 429, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
	planetest.Want[any](p, 429, "POST", "/sandboxes/a/snapshots/s/restore", "")
	after, err := p.Store.SandboxByName(t.Context(), "main", "a")
	if err != nil || after.Machine != now.Machine || after.Spec.Runtime.Memory != now.Spec.Runtime.Memory {
		t.Errorf("%v: it was %+v and is %+v", err, now, after)
	}
}

// TestEgressOutlivesTheProcess: what was counted is recorded each minute and at
// the end, and open connections are looked at when a quota is used up.
func TestEgressOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Enforced = new(atomic.Int64)
		p.Reopen()
		var bytes atomic.Uint64
		p.Quotas.Meter("main", bytes.Load)
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"egressMbPerDay":10}}`)
		bytes.Add(9 << 20)
		time.Sleep(2 * time.Second)
		if n := p.Enforced.Load(); n != 0 {
			p.T.Errorf("connections were looked at %d times below the limit", n)
		}
		bytes.Add(1 << 20)
		time.Sleep(2 * time.Second)
		if n := p.Enforced.Load(); n != 1 || p.Quotas.Barred("main") == "" {
			p.T.Errorf("connections were looked at %d times at the limit; barred: %q", n, p.Quotas.Barred("main"))
		}
		for _, recorded := range []string{"recorded each minute", "recorded at the end"} {
			if recorded == "recorded each minute" {
				time.Sleep(time.Minute)
				found := int64(0)
				if err := p.Store.Egress(p.T.Context(), func(_, _ string, n int64) { found += n }); err != nil || found != 10<<20 {
					p.T.Errorf("%s: %d, %v", recorded, found, err)
				}
				bytes.Add(1 << 20)
			}
			p.Reopen()
			if q := quotaOf(p, doze.QuotaEgress); q.Used != 11 || q.Limit != 10 || p.Quotas.Barred("main") == "" {
				p.T.Errorf("%s: %+v", recorded, q)
			}
		}
		time.Sleep(24 * time.Hour)
		if q := quotaOf(p, doze.QuotaEgress); q.Used != 0 || p.Quotas.Barred("main") != "" {
			p.T.Errorf("the next day: %+v", q)
		}
	})
}

func TestEgressThatNobodyCounts(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Unmetered = true
	p.Reopen()
	if w := p.Do("PUT", "/workspaces/main/quotas", `{"quotas":{"egressMbPerDay":10}}`); w.Code != 501 || !strings.Contains(w.Body.String(), "--egress direct") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if q := quotaOf(p, doze.QuotaEgress); !strings.Contains(q.Description, "unsupported here") {
		t.Errorf("%+v", q)
	}
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"egressMbPerDay":null}}`)
}

// TestDisksOfSandboxesCount: a disk counts with its size before anything is in it, and what
// it has in it does not count again. A snapshot needs room for all of it.
func TestDisksOfSandboxesCount(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		disk := func(name string) string {
			return `{"metadata":{"name":"` + name + `"},"spec":{"runtime":{"memory":256,"storage":64}}}`
		}
		p.Create(disk("a"))
		for _, when := range []string{"at once", "when it was measured"} {
			if q := quotaOf(p, doze.QuotaDisk); q.Used != 64 {
				p.T.Errorf("%s: %+v", when, q)
			}
			time.Sleep(2 * time.Minute)
		}
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"diskMb":128}}`)
		for path, body := range map[string]string{
			"/sandboxes":             disk("b"), // which would have room, and the first few megabytes of a would not
			"/sandboxes/a/snapshots": `{"name":"s"}`,
			"/sandboxes/a/fork":      `{"targetName":"f","targetType":"sandbox"}`,
		} {
			if w := p.Do("POST", path, body); w.Code != 429 || !strings.Contains(w.Body.String(), doze.QuotaDisk) {
				p.T.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"diskMb":129}}`)
		p.Create(disk("b")) // and some for its checkpoint
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"diskMb":447}}`)
		if w := p.Do("POST", "/sandboxes/a/snapshots", `{"name":"s"}`); w.Code != 429 { // 256 of memory, and 64
			p.T.Errorf("a snapshot: %d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/b", "")
		time.Sleep(2 * time.Minute)
		if q := quotaOf(p, doze.QuotaDisk); q.Used != 64 {
			p.T.Errorf("without b: %+v", q)
		}
	})
}

// TestDiskOfAWorkspace: what a node measures counts with what records promise,
// and nothing that sleeps is refused.
func TestDiskOfAWorkspace(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(planetest.Named("a"))
		time.Sleep(time.Minute)
		if q := quotaOf(p, doze.QuotaDisk); q.Used != 1 { // its checkpoint has a part of a megabyte
			p.T.Errorf("%+v", q)
		}
		planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"diskMb":1}}`)
		for path, body := range map[string]string{
			"/sandboxes":                    planetest.Named("b"),
			"/sandboxes/a/snapshots":        `{"name":"s"}`,
			"/sandboxes/a/fork":             `{"targetName":"f","targetType":"sandbox"}`,
			"/volumes":                      planetest.Named("v"),
			"/volume_templates?upload=true": planetest.Named("t"),
			"/images":                       `{"name":"own-x","image":"hub.test/app:1"}`,
		} {
			if w := p.Do("POST", path, body); w.Code != 429 || !strings.Contains(w.Body.String(), doze.QuotaDisk) {
				p.T.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		planetest.Want[any](p, 200, "POST", "/volume_templates", planetest.Named("t")) // without files
		if q := quotaOf(p, doze.QuotaSnapshots); q.Used != 0 {
			p.T.Errorf("%+v", q)
		}
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		time.Sleep(time.Minute)
		p.Create(planetest.Named("b"))
	})
}
