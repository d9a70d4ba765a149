package attack_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// world is one platform with a victim in its first workspace, and an attacker in
// another one.
type world struct {
	*testkit.Platform

	hostile *client.Client // administrator of the attacker's workspace
	key     string         // the attacker's

	// The victim is a process of its own: see suffer.
	orders  *json.Encoder
	answers *json.Decoder

	tried, refused atomic.Int64 // by the attack that is under way
}

const (
	attackers = "hostile" // the workspace
	// humble is the priority of this process, which makes the attacks. In the
	// world, attackers have processors of their own.
	humble = 10
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Platform: start(t)}
	w.engage(t)
	w.admit(t)
	calm(t)
	threads, err := filepath.Glob("/proc/self/task/*") // those that come later have it of these
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(filepath.Base(thread))
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, id, humble)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	return w
}

const (
	calmTime  = time.Second
	calmShare = 0.25 // of the processors that are in use
)

// calm waits until the host has little to do, so that the first attack does not
// look worse for what the platform does after its start. A host that others use
// never has.
func calm(t *testing.T) {
	t.Helper()
	before := busy(t)
	for range int(time.Minute / calmTime) {
		time.Sleep(calmTime)
		now := busy(t)
		if now-before < time.Duration(calmShare*float64(runtime.NumCPU())*float64(calmTime)) {
			return
		}
		before = now
	}
}

// busy is how long the processors have worked since the host started.
func busy(t *testing.T) time.Duration {
	t.Helper()
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	var user, nice, system int64
	if _, err := fmt.Sscanf(string(raw), "cpu %d %d %d", &user, &nice, &system); err != nil {
		t.Fatal(err)
	}
	const tick = 10 * time.Millisecond // USER_HZ
	return time.Duration(user+nice+system) * tick
}

// engage starts the victim, and waits until its sandbox works.
func (w *world) engage(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-victim")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // which ends it
		_ = cmd.Wait()
	})
	w.orders, w.answers = json.NewEncoder(in), json.NewDecoder(out)
	w.order(t, place{Address: w.Address, Key: w.Key, PID: w.PID()}, &watched{})
}

// order tells the victim something, and waits for its answer.
func (w *world) order(t *testing.T, what any, answer *watched) {
	t.Helper()
	if err := w.orders.Encode(what); err != nil {
		t.Fatal(err)
	}
	if err := w.answers.Decode(answer); err != nil {
		t.Fatalf("the victim: %v", err)
	}
}

// watch has the victim work until the function that it returns is called.
func (w *world) watch(t *testing.T) (done func() *watched) {
	t.Helper()
	w.order(t, true, &watched{})
	return func() *watched {
		var seen watched
		w.order(t, false, &seen)
		return &seen
	}
}

// Of the page on which the attacker logs in: the verifier and its challenge are
// those of RFC 7636, appendix B.
const (
	callback  = "http://127.0.0.1:4711/callback"
	verifier  = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
	email     = "mallory@example.test"
	password  = "correct horse"
)

// admit gives the attacker a workspace, as an operator gives one to anybody. She
// accepts an invitation, logs in, and makes a key.
func (w *world) admit(t *testing.T) {
	t.Helper()
	var invited struct{ Token string }
	w.call(t, w.Key, "", "/v0/workspaces", map[string]any{"name": attackers}, nil)
	w.call(t, w.Key, attackers, "/v0/users", map[string]any{"email": email, "role": "admin"}, &invited)
	w.call(t, "", "", "/v0/invitations/accept", map[string]any{"token": invited.Token, "password": password}, nil)

	form := url.Values{
		"response_type": {"code"}, "client_id": {"doze"}, "redirect_uri": {callback}, "state": {"s"}, "code_challenge": {challenge},
		"code_challenge_method": {"S256"}, "name": {email}, "password": {password}, "decision": {"allow"},
	}
	back := w.submit(t, "/v0/oauth/authorize", form, http.StatusSeeOther, nil)
	at, err := url.Parse(back.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	var token struct {
		Access string `json:"access_token"`
	}
	w.submit(t, "/v0/oauth/token", url.Values{
		"grant_type": {"authorization_code"}, "code": {at.Query().Get("code")}, "client_id": {"doze"}, "redirect_uri": {callback}, "code_verifier": {verifier},
	}, http.StatusOK, &token)
	var made struct{ APIKey string }
	w.call(t, token.Access, attackers, "/v0/api_keys", map[string]any{"name": "attacker"}, &made)
	w.key = made.APIKey
	if w.hostile, err = client.New(client.Config{Address: w.Address, Key: w.key, Workspace: attackers, Transport: elsewhere}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.hostile.Close)
}

// denied counts an attempt, and returns whether the platform refused it as it
// should: with an error that says what the caller did. One of ours is a fault.
func (w *world) denied(t *testing.T, err error) bool {
	t.Helper()
	w.tried.Add(1)
	if err == nil {
		return false
	}
	w.refused.Add(1)
	if k := doze.Public(err).Kind; k == doze.Internal && !cut(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.Errorf("an attack is answered as a fault of the platform: %v", err)
	}
	return true
}
