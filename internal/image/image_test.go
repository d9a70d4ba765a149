package image_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// imaged is a create of a sandbox of an image.
func imaged(image string) string { return `{"spec":{"runtime":{"image":"` + image + `"}}}` }

// orderedImage is what the node was last asked to run.
func orderedImage(p *planetest.Platform) (image string, login *fleet.Login) {
	p.Node.Mu.Lock()
	defer p.Node.Mu.Unlock()
	o := p.Node.Creates[len(p.Node.Creates)-1]
	return o.Image, o.Login
}

// putSecret gives a workspace credentials for a registry.
func putSecret(p *planetest.Platform, name, registry, password string, headers ...string) {
	p.T.Helper()
	auth := strings.ReplaceAll(`{"auths":{"`+registry+`":{"username":"me","password":"`+password+`"}}}`, `"`, `\"`)
	planetest.Want[doze.Secret](p, 200, "POST", "/secrets", `{"metadata":{"name":"`+name+`"},"data":{".dockerconfigjson":"`+auth+`"}}`, headers...)
}

// TestEitherImport: an image is imported or built of an upload, and never both.
func TestEitherImport(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		if w := p.Do("POST", "/images?upload=true", `{"name":"own-both","image":"hub.test/team/app:1"}`); w.Code != 400 || !strings.Contains(w.Body.String(), "image has no place beside upload=true") || w.Header().Get(build.UploadHeader) != "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 404, "GET", "/images/sandbox/own-both", "")
		planetest.Want[doze.ImageResponse](p, 200, "POST", "/images?upload=true&skip-build=true", `{"name":"own-both","image":"hub.test/team/app:1"}`)
	})
}

func TestImagesOfAWorkspace(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		made := planetest.Want[doze.ImageResponse](p, 200, "POST", "/images?skip-build=true", `{"name":"own-app","resourceType":"sandbox","image":"hub.test/team/app:1","generation":"x"}`)
		if made.Image != "hub.test/team/app@sha256:1" || made.Name != "own-app" || made.ResourceType != "sandbox" {
			t.Errorf("%+v", made)
		}
		planetest.After(time.Second)
		planetest.Want[doze.ImageResponse](p, 200, "POST", "/images", `{"name":"own-app:2","image":"hub.test/team/app:2"}`)
		got := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
		begin := doze.Time{Time: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
		later := doze.Time{Time: begin.Add(time.Second)}
		expect := doze.Image{
			Metadata: doze.ImageMetadata{Name: "own-app", ResourceType: "sandbox", Status: "BUILT", Workspace: "main", CreatedAt: begin, UpdatedAt: later},
			Spec: doze.ImageSpec{Size: 2000, Tags: []doze.ImageTag{
				{Name: "latest", Image: "hub.test/team/app@sha256:1", Size: 1000, CreatedAt: begin, UpdatedAt: begin},
				{Name: "2", Image: "hub.test/team/app@sha256:2", Size: 1000, CreatedAt: later, UpdatedAt: later},
			}},
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Error(diff)
		}
		for ref, source := range map[string]string{
			"own-app": "hub.test/team/app@sha256:1", "own-app:2": "hub.test/team/app@sha256:2", "sandbox/own-app:latest": "hub.test/team/app@sha256:1",
			"hub.test/x:7": "hub.test/x:7", "blaxel/base-image:latest": "blaxel/base-image:latest",
		} {
			sb := p.Create(imaged(ref))
			if image, login := orderedImage(p); image != source || login != nil || sb.Spec.Runtime.Image != ref {
				t.Errorf("%s: the node was asked for %s, and %s is shown", ref, image, sb.Spec.Runtime.Image)
			}
			if ref != "own-app:2" {
				planetest.Want[any](p, 200, "DELETE", "/sandboxes/"+sb.Metadata.Name, "")
			}
		}
		if w := p.Do("POST", "/sandboxes", imaged("own-app:3")); w.Code != 400 || !strings.Contains(w.Body.String(), "INVALID_IMAGE") {
			t.Errorf("an unknown tag: %d %s", w.Code, w.Body)
		}

		// A tag moves; what has it keeps it until it gets a fresh machine.
		planetest.Want[any](p, 200, "POST", "/images", `{"name":"own-app:2","image":"hub.test/team/app:3"}`)
		if i := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", ""); i.Spec.Tags[1].Image != "hub.test/team/app@sha256:3" || i.Metadata.LastDeployedAt.IsZero() {
			t.Errorf("%+v", i)
		}
		for _, path := range []string{"/images/sandbox/own-app:2", "/images/sandbox/own-app/tags/2", "/images/sandbox/own-app"} {
			if w := p.Do("DELETE", path, ""); w.Code != 400 || !strings.Contains(w.Body.String(), "in use") {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		planetest.Want[any](p, 404, "DELETE", "/images/sandbox/own-app/tags/9", "")
		if c := planetest.Want[struct{ Deleted int }](p, 200, "DELETE", "/images", ""); c.Deleted != 1 {
			t.Errorf("cleaned %d", c.Deleted)
		}
		for _, sb := range planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "") {
			p.Do("DELETE", "/sandboxes/"+sb.Metadata.Name, "")
		}
		freed := len(p.Node.Released())
		planetest.Want[doze.Image](p, 200, "DELETE", "/images/sandbox/own-app:2", "")
		if all := p.Node.Released(); freed != 2 || len(all) != 3 || !strings.HasSuffix(all[2], "@sha256:3") {
			t.Errorf("the node hears that it may remove %v, %d of them when a tag moved and after a clean-up", all, freed)
		}
		planetest.Want[any](p, 404, "GET", "/images/sandbox/own-app", "")
		if all := planetest.Want[[]doze.Image](p, 200, "GET", "/images", ""); len(all) != 0 {
			t.Errorf("%+v", all)
		}
	})
}

// TestImagesShowTheirConfiguration: one image says what its versions say about their
// process, of those that moved last. A list does not.
func TestImagesShowTheirConfiguration(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		config := doze.ImageConfig{Entrypoint: []string{"/start"}, Ports: []string{"80/tcp"}, Labels: map[string]string{"a": "b"}, StopSignal: "SIGINT"}
		p.Node.Mu.Lock()
		p.Node.Config = config
		p.Node.Mu.Unlock()
		for n := range doze.ImageConfigsMax + 2 {
			planetest.After(time.Second)
			planetest.Want[any](p, 200, "POST", "/images", fmt.Sprintf(`{"name":"own-app:%d","image":"hub.test/app:%d"}`, n, n))
		}
		i := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
		for n, tag := range i.Spec.Tags {
			if got := tag.Config; (got != nil) != (n >= 2) || got != nil && !cmp.Equal(*got, config) {
				t.Errorf("%s says %+v", tag.Name, got)
			}
		}
		for _, tag := range planetest.Want[[]doze.Image](p, 200, "GET", "/images", "")[0].Spec.Tags {
			if tag.Config != nil {
				t.Errorf("in a list, %s says %+v", tag.Name, tag.Config)
			}
		}
		// It is no label of a sandbox, and no port that its caller named.
		if sb := p.Create(imaged("own-app:21")); len(sb.Metadata.Labels)+len(sb.Spec.Runtime.Ports) != 0 {
			t.Errorf("a sandbox of it has %+v and %+v", sb.Metadata.Labels, sb.Spec.Runtime.Ports)
		}
	})
}

func TestImageCredentials(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	other := planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	in := []string{"X-Blaxel-Workspace", "other"}
	const add = `{"name":"own-app","image":"hub.test/private:1"}`
	if w := p.Do("POST", "/images", add); w.Code != 400 || !strings.Contains(w.Body.String(), "INVALID_IMAGE") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	putSecret(p, "wrong", "hub.test/elsewhere", "x")
	putSecret(p, "right", "hub.test", "word")
	planetest.Want[any](p, 200, "POST", "/images", add)
	main := planetest.Want[doze.Workspace](p, 200, "GET", "/workspaces/main", "")
	for _, ref := range []string{"own-app", "hub.test/private:1"} {
		p.Create(imaged(ref))
		if _, login := orderedImage(p); login == nil || *login != (fleet.Login{Workspace: main.ID, Username: "me", Password: "word"}) {
			t.Errorf("%s: %+v", ref, login)
		}
	}
	// Who has other credentials goes by those; who has none has none.
	planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", imaged("hub.test/private:1"), in...)
	if _, login := orderedImage(p); login != nil {
		t.Errorf("another workspace has %+v", login)
	}
	putSecret(p, "a", "hub.test", "guess", in...)
	planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", imaged("hub.test/private:1"), in...)
	if _, login := orderedImage(p); login == nil || login.Workspace != other.ID || login.Password != "guess" {
		t.Errorf("another workspace has %+v", login)
	}
	planetest.Want[any](p, 400, "POST", "/sandboxes", imaged("own-app"), in...)
	planetest.Want[any](p, 404, "GET", "/images/sandbox/own-app", "", in...)

	// Shared, it comes with the credentials of who shares it.
	const share = "/images/sandbox/own-app/share"
	planetest.Want[doze.Image](p, 200, "POST", share, `{"targetWorkspace":"other"}`)
	shared := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "", in...)
	if shared.Metadata.SourceWorkspace != "main" || shared.Metadata.Workspace != "other" || len(planetest.Want[[]doze.Image](p, 200, "GET", "/images", "", in...)) != 1 {
		t.Errorf("%+v", shared)
	}
	user := planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", imaged("own-app"), in...)
	if image, login := orderedImage(p); image != "hub.test/private@sha256:1" || login == nil || login.Workspace != main.ID || login.Password != "word" {
		t.Errorf("%s with %+v", image, login)
	}
	if diff := cmp.Diff([]doze.ImageShare{{Workspace: "other", Status: "active"}}, planetest.Want[[]doze.ImageShare](p, 200, "GET", share, "")); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct {
		status             int
		method, path, body string
		headers            []string
	}{
		{409, "POST", share, `{"targetWorkspace":"other"}`, nil},
		{400, "POST", share, `{"targetWorkspace":"main"}`, nil},
		{400, "POST", share, `{}`, nil},
		{404, "POST", share, `{"targetWorkspace":"none"}`, nil},
		{404, "DELETE", share + "/none", "", nil},
		{403, "DELETE", "/images/sandbox/own-app", "", in},
		{403, "GET", share, "", in},
		{409, "POST", "/images", `{"name":"own-app","image":"hub.test/x:1"}`, in},
	} {
		w := p.Do(tt.method, tt.path, tt.body, tt.headers...)
		planetest.CheckError(t, w)
		if w.Code != tt.status {
			t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, w.Code, w.Body, tt.status)
		}
	}
	for _, sb := range planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "") {
		p.Do("DELETE", "/sandboxes/"+sb.Metadata.Name, "")
	}
	planetest.Want[any](p, 400, "DELETE", "/images/sandbox/own-app", "") // the other workspace uses it
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/"+user.Metadata.Name, "", in...)
	planetest.Want[doze.Image](p, 200, "DELETE", share+"/other", "")
	planetest.Want[any](p, 400, "POST", "/sandboxes", imaged("own-app"), in...)
	planetest.Want[doze.Image](p, 200, "DELETE", "/images/sandbox/own-app", "")
	if all := planetest.Want[[]any](p, 200, "GET", "/pending-image-shares?direction=incoming", ""); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	planetest.Want[any](p, 404, "POST", "/pending-image-shares/x/accept", "")
	planetest.Want[any](p, 404, "POST", "/pending-image-shares/x/decline", "")
}

func TestImageMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	p.Node.Set("builders", doze.Errorf(doze.Unsupported, "there is no doze-builder"))
	for _, tt := range []struct {
		status             int
		method, path, body string
		says               string
	}{
		{400, "POST", "/images", `{"name":"A/b","resourceType":"thing"}`, "resourceType must be"},
		{400, "POST", "/images", `{"name":"a:b c","image":"hub.test/a"}`, "name must be"},
		{400, "POST", "/images", `{"image":7}`, "image must be a string"},
		{400, "POST", "/images", `{"name":"own-a","image":"hub.test/nonsense"}`, "INVALID_IMAGE"},
		{409, "POST", "/images", `{"name":"base","image":"hub.test/a:1"}`, "choose another name"},
		{501, "POST", "/images?upload=true", `{"name":"own-a","resourceType":"sandbox"}`, "builds no images"},
		{501, "POST", "/images", `{"name":"own-a","resourceType":"agent","image":"hub.test/a:1"}`, "sandboxes only"},
		{501, "POST", "/sandboxes?upload=true", planetest.Named("b"), "builds no images"},
		{501, "PUT", "/sandboxes/a?upload=true", planetest.Named("a"), "builds no images"},
		{404, "PUT", "/sandboxes/b?upload=true", planetest.Named("b"), "b"},
		{404, "GET", "/images/agent/own-a", "", "image"},
		{404, "GET", "/images/sandbox/own-a", "", "image"},
		{400, "POST", "/secrets", `{"metadata":{"name":"s"},"data":{".dockerconfigjson":"{}"}}`, "auths"},
	} {
		w := p.Do(tt.method, tt.path, tt.body)
		planetest.CheckError(t, w)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s %s: %d %s, want %d %q", tt.method, tt.path, tt.body, w.Code, w.Body, tt.status, tt.says)
		}
	}
	if all := planetest.Want[[]doze.Image](p, 200, "GET", "/images", ""); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
