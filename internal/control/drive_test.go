package control_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane/planetest"
)

func TestDrives(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		d := planetest.Want[doze.Drive](p, 200, "POST", "/drives", `{"metadata":{"name":"d","externalId":"ext"},"spec":{"region":"auto","permissions":[{"labels":{"team":"a"}}]}}`)
		if d.State.S3URL != "http://s3.test/drives" || d.Status != "DEPLOYED" || d.Spec.Region != "here-1" || len(d.Events) != 1 {
			t.Errorf("it is %+v", d)
		}
		if diff := cmp.Diff([]doze.DrivePermission{{Labels: map[string]string{"team": "a"}, Mode: "read-write", Path: "/"}}, d.Spec.Permissions); diff != "" {
			t.Errorf("its permissions (-want +got):\n%s", diff)
		}
		w := p.Do("POST", "/drives", planetest.Named("d"))
		if w.Code != 409 || !strings.Contains(w.Body.String(), `"DRIVE_ALREADY_EXISTS"`) {
			t.Errorf("a name that is taken: %d %s", w.Code, w.Body)
		}
		if got := planetest.Want[doze.Drive](p, 200, "GET", "/drives/by-external-id/ext", ""); got.Metadata.Name != "d" {
			t.Errorf("by its external id: %+v", got)
		}
		type page struct {
			Data []doze.Drive
			Meta struct{ Total int }
		}
		list := planetest.Want[page](p, 200, "GET", "/drives?externalId=ext&status=deployed", "", "Blaxel-Version", "2026-04-28")
		if len(list.Data) != 1 || list.Meta.Total != 1 || list.Data[0].Events != nil {
			t.Errorf("the list is %+v", list)
		}
		planetest.Want[any](p, 400, "GET", "/drives?status=RUNNING", "")
		d = planetest.Want[doze.Drive](p, 200, "PUT", "/drives/d", `{"metadata":{"displayName":"D"},"spec":{"permissions":[]}}`)
		if d.Metadata.DisplayName != "D" || len(d.Spec.Permissions) != 0 || d.Metadata.ExternalID != "ext" {
			t.Errorf("changed, it is %+v", d)
		}
		planetest.Want[any](p, 400, "PUT", "/drives/d", planetest.Named("e"))
		planetest.Want[any](p, 409, "DELETE", "/workspaces/main", "")

		p.Bucket.Fail(errors.New("unreachable"))
		gone := planetest.Want[map[string]string](p, 200, "DELETE", "/drives/d", "")
		if gone["name"] != "d" || gone["message"] == "" {
			t.Errorf("deleted: %v", gone)
		}
		for _, call := range []string{"GET /drives/d", "PUT /drives/d", "DELETE /drives/d", "POST /drives/d/access-token", "GET /drives/by-external-id/ext"} {
			method, path, _ := strings.Cut(call, " ")
			planetest.Want[any](p, 404, method, path, "{}")
		}
		p.Reopen() // its files are not forgotten
		p.Bucket.Fail(nil)
		planetest.After(time.Minute)
		if p.Bucket.Removed() != 1 {
			t.Error("its files are left")
		}
	})
}

// TestDriveMistakes are all told at once, and nothing is half created.
func TestDriveMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for body, what := range map[string][]string{
		`{"metadata":{"name":"A"},"spec":{"region":"mars","permissions":[{"mode":"write","path":"a"},{"path":"/../x"},{},{}]}}`: {
			"metadata.name", "spec.region", "at most 3", "permissions[0].mode", "permissions[0].path must begin", "permissions[1].path",
		},
		`{"metadata":{"name":"d"},"spec":{"permissions":{}}}`:                    {"spec.permissions"},
		`{"metadata":{"name":"d"},"spec":{"permissions":[{"labels":{"":"x"}}]}}`: {"spec.permissions[0].labels"},
		`[]`: {"object"},
	} {
		w := p.Do("POST", "/drives", body)
		for _, part := range what {
			if w.Code != 400 || !strings.Contains(w.Body.String(), part) {
				t.Errorf("%s: %d %s; want %s", body, w.Code, w.Body, part)
			}
		}
	}
	if all := planetest.Want[[]any](p, 200, "GET", "/drives", ""); len(all) != 0 {
		t.Errorf("there are %v", all)
	}
}

// TestDriveTokens prove a drive to others, and open nothing here.
func TestDriveTokens(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/drives", planetest.Named("d"))
	got := planetest.Want[doze.DriveToken](p, 200, "POST", "/drives/d/access-token", "")
	token, err := jwt.ParseSigned(got.AccessToken, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		t.Fatal(err)
	}
	keys := planetest.Want[jose.JSONWebKeySet](p, 200, "GET", "/drives/jwks.json", "", "Authorization", "")
	var c access.DriveClaims
	if err := token.Claims(keys.Key(token.Headers[0].KeyID)[0], &c); err != nil {
		t.Fatal(err)
	}
	if c.Drive != "d" || c.Workspace != "main" || c.Audience == "" || got.ExpiresIn != 3600 || !c.Expiry.Time().After(time.Now()) {
		t.Errorf("it says %+v, and is good for %d s", c, got.ExpiresIn)
	}
	if w := p.Do("GET", "/drives", "", "Authorization", "Bearer "+got.AccessToken); w.Code != http.StatusUnauthorized {
		t.Errorf("as a credential: %d", w.Code)
	}
}

// TestDrivesNeedABucket: who asks for a drive learns what to configure.
func TestDrivesNeedABucket(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Bucket = nil
	p.Stop()
	p.Open(false)
	w := p.Do("POST", "/drives", planetest.Named("d"))
	if w.Code != http.StatusNotImplemented || !strings.Contains(w.Body.String(), "--drives") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
