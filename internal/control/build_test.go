package control_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

var dockerfile = planetest.Tar(map[string]string{"Dockerfile": "FROM doze/slim\nRUN echo built\n"})

// builderBody is what the image builder of the clients sends.
const builderBody = `{"metadata":{"name":"own-app","labels":{"x-blaxel-auto-generated":"true"}},"spec":{"runtime":{"memory":1024}}}`

func built(p *planetest.Platform) planetest.Sandbox {
	p.T.Helper()
	return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/own-app", "")
}

func TestSandboxIsBuilt(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		planetest.Want[any](p, 404, "PUT", "/sandboxes/own-app?upload=true", builderBody)
		address := p.Offer("POST", "/sandboxes?upload=true", builderBody)
		sb := built(p)
		if sb.Status != "UPLOADING" || sb.State != "" || !strings.HasPrefix(sb.Spec.Runtime.Image, "sandbox/own-app:") || len(p.Node.Orders()) != 0 {
			t.Errorf("%+v", sb)
		}
		if w := p.Do("POST", "/sandboxes?upload=true", builderBody); w.Code != 409 {
			t.Errorf("the name again: %d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 409, "POST", "/sandboxes/own-app/wake", "")
		planetest.Want[any](p, 409, "PUT", "/sandboxes/own-app", `{"spec":{"runtime":{"image":"hub.test/a:1"}}}`)
		planetest.Want[any](p, 200, "PUT", "/sandboxes/own-app", `{"spec":{"runtime":{"envs":[{"name":"A","value":"b"}]}}}`)
		p.Upload(address, dockerfile)
		if got := built(p).Status; got != "BUILDING" {
			t.Errorf("at once after the upload it is %s", got)
		}
		planetest.After(0)
		sb = built(p)
		if sb.Status != "DEPLOYED" || sb.State != "RUNNING" || fmt.Sprint(planetest.Statuses(sb)) != "[UPLOADING BUILDING DEPLOYING DEPLOYED]" {
			t.Errorf("%s %s %v", sb.Status, sb.State, planetest.Statuses(sb))
		}
		o := p.Node.Orders()[0]
		image := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
		if o.Image != image.Spec.Tags[0].Image || o.Memory != 1024 || fmt.Sprint(o.Env) != "[A=b]" || len(image.Spec.Tags) != 2 || image.Spec.Tags[1].Name != "latest" || image.Spec.Size != image.Spec.Tags[0].Size {
			t.Errorf("%+v of %+v", o, image)
		}
		log := planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?resourceType=sandboxes&workloadIds=own-app&type=all&limit=1000&offset=0", "")
		if text := fmt.Sprint(log["own-app"].Lines); !strings.Contains(text, "[2/2] RUN echo built") || !strings.Contains(text, "the sandbox is ready") {
			t.Errorf("%s", text)
		}
		// The next start has it as it is.
		p.Reopen()
		if sb := built(p); sb.Status != "DEPLOYED" {
			t.Errorf("after a restart: %s", sb.Status)
		}
	})
}

// TestBuildingIsSeen: a build that is done at once is BUILDING for three seconds, unless
// somebody read that.
func TestBuildingIsSeen(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Upload(p.Offer("POST", "/sandboxes?upload=true", builderBody), dockerfile)
		planetest.After(2900 * time.Millisecond)
		if n := p.Node.Ordered(); n != 0 {
			t.Errorf("%d machines before anybody could see that it is BUILDING", n)
		}
		planetest.After(200 * time.Millisecond)
		if got := built(p).Status; got != "DEPLOYED" {
			t.Errorf("after three seconds it is %s", got)
		}
	})
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Upload(p.Offer("POST", "/sandboxes?upload=true", builderBody), dockerfile)
		planetest.After(4 * time.Second)
		first := built(p)
		put := strings.Replace(builderBody, "1024", "2048", 1)

		// What runs goes on until the image is there.
		address := p.Offer("PUT", "/sandboxes/own-app?upload=true", put)
		if sb := built(p); sb.Status != "UPLOADING" || sb.State != "RUNNING" || sb.Spec.Runtime.Memory != 1024 || sb.Spec.Runtime.Image != first.Spec.Runtime.Image {
			t.Errorf("%+v", sb)
		}
		hold := make(chan error)
		p.Node.OnBuild(func(fleet.BuildOrder) error { return <-hold })
		p.Upload(address, dockerfile)
		planetest.After(time.Minute)
		if sb := built(p); sb.Status != "BUILDING" || sb.State != "RUNNING" || p.Node.Ordered() != 1 {
			t.Errorf("%+v", sb)
		}
		// It fails: the status says so for a minute, and an event says why.
		hold <- fleet.BuildFailed("the command failed with exit code 7", fleet.BuildFailure{Step: 2, Line: 3, Command: "RUN false", Output: []string{"the last line"}})
		planetest.After(0)
		sb := built(p)
		last := sb.Events[len(sb.Events)-1]
		if sb.Status != "FAILED" || sb.State != "RUNNING" || last.Type != doze.EventNotice || !strings.Contains(last.Message, "the command failed with exit code 7 (Dockerfile line 3: RUN false)") || !strings.Contains(last.Message, "the last line") {
			t.Errorf("%s %s %+v", sb.Status, sb.State, last)
		}
		planetest.After(time.Minute)
		if sb := built(p); sb.Status != "DEPLOYED" || sb.Spec.Runtime.Image != first.Spec.Runtime.Image || p.Node.Ordered() != 1 {
			t.Errorf("%+v", sb)
		}
		// It works: the sandbox gets a machine of the image, and the change.
		p.Node.OnBuild(nil)
		p.Upload(p.Offer("PUT", "/sandboxes/own-app?upload=true", put), dockerfile)
		planetest.After(4 * time.Second)
		sb = built(p)
		if all := p.Node.Orders(); sb.Status != "DEPLOYED" || sb.Spec.Runtime.Memory != 2048 || sb.Spec.Runtime.Image == first.Spec.Runtime.Image || len(all) != 2 || all[1].Memory != 2048 || all[1].Image == all[0].Image {
			t.Errorf("%+v", sb)
		}
		// A tag that nobody has goes with the build after the next.
		p.Upload(p.Offer("PUT", "/sandboxes/own-app?upload=true", put), dockerfile)
		planetest.After(4 * time.Second)
		image := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
		if len(image.Spec.Tags) != 3 || strings.Contains(fmt.Sprint(image.Spec.Tags), strings.TrimPrefix(first.Spec.Runtime.Image, "sandbox/own-app:")) {
			t.Errorf("%+v", image.Spec.Tags)
		}
		planetest.Want[any](p, 400, "PUT", "/sandboxes/own-app?upload=true", `{"spec":{"runtime":{"image":"hub.test/a:1"}}}`)
		planetest.Want[any](p, 409, "PUT", "/sandboxes/own-app?upload=true", `{"spec":{"enabled":false}}`)
	})
}

// TestTheEdgeFindsWhatIsBuilt: from its offer on, the edge knows why a sandbox lets nobody in.
func TestTheEdgeFindsWhatIsBuilt(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		look := func(when string, building, failed bool, why string) {
			t.Helper()
			up, ok := p.Dir.Find("main", "own-app", time.Now())
			if !ok || !up.Enabled || up.Building != building || up.Failed != failed || !strings.Contains(up.Why, why) || why == "" && up.Why != "" {
				t.Errorf("%s: %t %+v", when, ok, up)
			}
		}
		p.Node.OnBuild(func(fleet.BuildOrder) error { return fleet.BuildFailed("no such file", fleet.BuildFailure{Line: 2}) })
		address := p.Offer("POST", "/sandboxes?upload=true", builderBody)
		look("offered", true, false, "")
		p.Reopen()
		look("offered, after a restart", true, false, "")
		p.Upload(address, dockerfile)
		look("uploaded", true, false, "")
		planetest.After(0)
		look("failed", false, true, "no such file (Dockerfile line 2)")
		p.Reopen()
		look("failed, after a restart", false, true, "no such file (Dockerfile line 2)")
		p.Node.OnBuild(nil)
		address = p.Offer("PUT", "/sandboxes/own-app?upload=true", builderBody)
		look("offered again", true, false, "")
		p.Upload(address, dockerfile)
		planetest.After(4 * time.Second)
		look("deployed", false, false, "")
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/own-app", "")
		if up, ok := p.Dir.Find("main", "own-app", time.Now()); ok {
			t.Errorf("deleted: %+v", up)
		}
		// Nothing is left of one that is deleted while it is built.
		p.Offer("POST", "/sandboxes?upload=true", builderBody)
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/own-app", "")
		if up, ok := p.Dir.Find("main", "own-app", time.Now()); ok {
			t.Errorf("deleted while it was built: %+v", up)
		}
	})
}

// TestBuildOfAFreshSandboxFails: the sandbox fails, and the next upload begins anew.
func TestBuildOfAFreshSandboxFails(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Node.OnBuild(func(fleet.BuildOrder) error { return fleet.BuildFailed("no such file", fleet.BuildFailure{Line: 2}) })
		p.Upload(p.Offer("POST", "/sandboxes?upload=true", builderBody), dockerfile)
		planetest.After(0)
		sb := built(p)
		if last := sb.Events[len(sb.Events)-1]; sb.Status != "FAILED" || !strings.Contains(last.Message, "no such file (Dockerfile line 2)") {
			t.Errorf("%s %+v", sb.Status, last)
		}
		p.Node.OnBuild(nil)
		address := p.Offer("PUT", "/sandboxes/own-app?upload=true", builderBody)
		if got := built(p).Status; got != "UPLOADING" {
			t.Errorf("after another offer: %s", got)
		}
		p.Upload(address, dockerfile)
		planetest.After(4 * time.Second)
		if got := built(p).Status; got != "DEPLOYED" {
			t.Errorf("in the end: %s", got)
		}
		// A start that does not work is a failure of the build too.
		p.Node.Set("create", doze.Errorf(doze.Unavailable, "there is no room"))
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/own-app", "")
		p.Upload(p.Offer("POST", "/sandboxes?upload=true", builderBody), dockerfile)
		planetest.After(4 * time.Second)
		if sb := built(p); sb.Status != "FAILED" || !strings.Contains(fmt.Sprint(sb.Events), "there is no room") {
			t.Errorf("%s %+v", sb.Status, sb.Events)
		}
		if b := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", "")[0]; b.Status != doze.BuildFailed || !strings.Contains(b.Failure.Message, "is built, but its sandbox does not run: there is no room") {
			t.Errorf("%+v", b)
		}
	})
}

// TestDeleteCancels: the end of a sandbox is that of its build.
func TestDeleteCancels(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		for _, phase := range []string{"UPLOADING", "BUILDING", "rebuild"} {
			address := p.Offer("POST", "/sandboxes?upload=true", builderBody)
			hold := make(chan error, 1)
			if phase == "rebuild" {
				p.Upload(address, dockerfile)
				planetest.After(4 * time.Second)
				address = p.Offer("PUT", "/sandboxes/own-app?upload=true", builderBody)
			}
			if phase != "UPLOADING" {
				p.Node.OnBuild(func(fleet.BuildOrder) error { return <-hold })
				p.Upload(address, dockerfile)
				planetest.After(0)
			}
			planetest.Want[any](p, 200, "DELETE", "/sandboxes/own-app", "")
			hold <- nil
			p.Node.OnBuild(nil)
			planetest.After(time.Minute)
			if b := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", "")[0]; b.Status != doze.BuildCancelled {
				t.Errorf("%s: %+v", phase, b)
			}
			if got := p.Node.Count(); got != 0 {
				t.Errorf("%s: %d machines are left", phase, got)
			}
			if w := p.Do("PUT", p.Path(address), dockerfile, "Authorization", ""); w.Code != 409 {
				t.Errorf("%s: the address is good still: %d %s", phase, w.Code, w.Body)
			}
		}
		// A build that is cancelled leaves what runs as it is.
		address := p.Offer("POST", "/sandboxes?upload=true", builderBody)
		all := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", "")
		planetest.Want[any](p, 200, "DELETE", "/builds/"+all[0].ID, "")
		if got := built(p).Status; got != "FAILED" {
			t.Errorf("without an image it is %s", got)
		}
		if w := p.Do("PUT", p.Path(address), dockerfile, "Authorization", ""); w.Code != 409 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestNewerUploadWins: of two builds for one sandbox, the later counts.
func TestNewerUploadWins(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		hold := make(chan error, 1)
		p.Node.OnBuild(func(fleet.BuildOrder) error { return <-hold })
		p.Upload(p.Offer("POST", "/sandboxes?upload=true", builderBody), dockerfile)
		planetest.After(0)
		address := p.Offer("PUT", "/sandboxes/own-app?upload=true", builderBody)
		hold <- nil
		planetest.After(time.Minute)
		if got := built(p).Status; got != "UPLOADING" || p.Node.Ordered() != 0 {
			t.Errorf("it is %s", got)
		}
		p.Node.OnBuild(nil)
		p.Upload(address, dockerfile)
		planetest.After(4 * time.Second)
		sb := built(p)
		if all := p.Node.Orders(); sb.Status != "DEPLOYED" || len(all) != 1 || !strings.HasPrefix(all[0].Image, "built/"+p.Node.Builds()[1].ID) {
			t.Errorf("%+v", sb)
		}
	})
}

// TestBuildSurvivesARestart: in each of its phases.
func TestBuildSurvivesARestart(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		address := p.Offer("POST", "/sandboxes?upload=true", builderBody)
		p.Reopen()
		if got := built(p).Status; got != "UPLOADING" {
			t.Errorf("after a restart: %s", got)
		}
		stopping := make(chan struct{})
		p.Node.OnBuild(func(fleet.BuildOrder) error { <-stopping; return fleet.ErrStopping })
		p.Upload(address, dockerfile)
		planetest.After(0)
		go close(stopping)
		p.Reopen()
		if got := built(p).Status; got != "BUILDING" {
			t.Errorf("after a restart: %s", got)
		}
		p.Node.OnBuild(nil)
		planetest.After(time.Minute)
		if got := built(p).Status; got != "DEPLOYED" {
			t.Errorf("in the end: %s", got)
		}
	})
}

// TestLabelOfClientsAsksNothing: it stays on what was built, and comes back with updates.
func TestLabelOfClientsAsksNothing(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	for _, request := range []string{"POST /sandboxes", "PUT /sandboxes/own-app"} {
		method, path, _ := strings.Cut(request, " ")
		if w := p.Do(method, path, builderBody); w.Code != 200 || w.Header().Get("X-Blaxel-Upload-Url") != "" {
			t.Errorf("%s: %d %s", request, w.Code, w.Body)
		}
	}
	planetest.Want[any](p, 400, "POST", "/sandboxes?upload=true", `{"metadata":{"name":"own-d"},"spec":{"runtime":{"image":"hub.test/a:1"}}}`)
	planetest.Want[any](p, 409, "POST", "/sandboxes?upload=true", planetest.Named("base"))
}
