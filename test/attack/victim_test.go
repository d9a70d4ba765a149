package attack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"doze"
	"doze/client"
	"doze/internal/testkit"
)

const (
	patience = 2 * time.Minute // for what is not measured
	dialTime = 5 * time.Second
	// askEvery is how often the victim asks for each of its things. It is a
	// person's product that works, not a load.
	askEvery = 40 * time.Millisecond
	// victimWait is after how long the victim gives up. It counts as this long.
	victimWait = 10 * time.Second
	// megabytes that the victim's sandbox keeps and checks.
	megabytes = 8
)

// world is one platform with a victim in its first workspace, and an attacker in
// another one.
type world struct {
	*testkit.Platform

	admin   *client.Client // operator, and owner of the victim
	hostile *client.Client // administrator of the attacker's workspace
	key     string         // the attacker's
	victim  *testkit.Keeper
	url     string // of the victim's sandbox

	tried, refused atomic.Int64 // by the attack that is under way
}

const attackers = "hostile" // the workspace

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Platform: start(t)}
	var err error
	if w.admin, err = w.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.admin.Close)
	if w.victim, err = w.Keep(t.Context(), "victim", "victim", megabytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.victim.Close)
	sb, err := w.admin.Sandbox(t.Context(), "victim")
	if err != nil {
		t.Fatal(err)
	}
	w.url = sb.Metadata.URL
	w.admit(t)
	return w
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
	if w.hostile, err = client.New(client.Config{Address: w.Address, Key: w.key, Workspace: attackers}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.hostile.Close)
}

// watched is what the victim saw, and what dozed took meanwhile.
type watched struct {
	took   []time.Duration // of all its requests, sorted
	errs   []error
	wrong  []string // that its sandbox lost
	memory int64    // the most
}

func (s *watched) quantile(q float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[min(len(s.took)-1, int(q*float64(len(s.took))))].Round(100 * time.Microsecond)
}

// judge fails the test if a promise was broken.
func (s *watched) judge(t *testing.T) {
	t.Helper()
	for _, what := range s.wrong {
		t.Errorf("the victim's sandbox: %s", what)
	}
	if len(s.errs) > 0 {
		t.Errorf("%d of %d requests of the victim failed, such as: %v", len(s.errs), len(s.took), s.errs[0])
	}
	most := victimP99
	if !*all {
		most = busyP99
	}
	if p99 := s.quantile(0.99); p99 > most {
		t.Errorf("the victim's p99 is %v, want under %v", p99, most)
	}
	if s.memory > dozedMax {
		t.Errorf("dozed took %d MB, want under %d", s.memory>>20, dozedMax>>20)
	}
}

// watch has the victim work until the function that it returns is called. A
// request that is under way then is still answered: nobody knows what one that is
// given up does later.
func (w *world) watch(ctx context.Context) (done func() *watched) {
	end := make(chan struct{})
	var (
		wg sync.WaitGroup
		mu sync.Mutex
		s  watched
	)
	for _, ask := range []func(context.Context) ([]string, error){w.askControl, w.askAgent, w.askKeeper} {
		wg.Go(func() {
			tick := time.NewTicker(askEvery)
			defer tick.Stop()
			for {
				began := time.Now()
				wrong, err := ask(ctx)
				took := time.Since(began)
				mu.Lock()
				s.took = append(s.took, took)
				s.wrong = append(s.wrong, wrong...)
				if err != nil {
					s.errs = append(s.errs, err)
				}
				mu.Unlock()
				select {
				case <-tick.C:
				case <-end:
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			if now, err := resident(w.PID()); err == nil { // without a process, requests fail
				s.memory = max(s.memory, now)
			}
			select {
			case <-time.After(poll):
			case <-end:
				return
			}
		}
	})
	return func() *watched {
		close(end)
		wg.Wait()
		slices.Sort(s.took)
		return &s
	}
}

func (w *world) askControl(ctx context.Context) ([]string, error) {
	return nil, w.get(ctx, w.Address+"/v0/sandboxes/victim")
}

func (w *world) askAgent(ctx context.Context) ([]string, error) {
	return nil, w.get(ctx, w.url+"/filesystem/var/tmp")
}

func (w *world) askKeeper(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, victimWait)
	defer cancel()
	got, err := w.victim.Step(ctx)
	return got.Wrong, err
}

// get asks for something as the victim.
func (w *world) get(ctx context.Context, url string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, victimWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+w.Key)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
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
