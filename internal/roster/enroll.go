package roster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet/enroll"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
	"github.com/dozehq/doze/internal/seal"
)

const (
	// enrollRate and enrollBurst are how often one source may try to join. A node needs two
	// requests.
	enrollRate  = 1
	enrollBurst = 20
	// enrollSources is how many sources are counted at a time.
	enrollSources = 4096
	// tokenTTLLeast is how long a token is good at least: somebody has to copy it.
	tokenTTLLeast = time.Minute
)

// Enrollment is what nodes join with.
type Enrollment struct {
	Keys   string // directory of the authority of certificates
	Egress string // file of the key that opens secrets of routing rules; made if it is needed
	URL    string // where nodes reach control
	// Life is how long a certificate of a node is good. A node gets the next one when a third of
	// it is left.
	Life time.Duration
}

// CreateToken makes a token with which nodes join for a time.
func (r *Roster) CreateToken(ctx context.Context, ttl time.Duration) (doze.NodeToken, error) {
	a, err := mtls.OpenAuthority(r.Enrollment.Keys)
	if err != nil {
		return doze.NodeToken{}, err
	}
	if _, err := r.egressKey(ctx); err != nil {
		return doze.NodeToken{}, err
	}
	id, now := strings.ToLower(rand.Text()), time.Now()
	code := access.NewCode(enroll.Prefix, id)
	if err := r.Store.PutJoinToken(ctx, id, access.HashCode(code), now.Add(ttl), now); err != nil {
		return doze.NodeToken{}, err
	}
	text := enroll.NewToken(code, a.Fingerprint()).Text()
	return doze.NodeToken{Token: text, Control: r.Enrollment.URL, ExpiresAt: doze.Time{Time: now.Add(ttl)}}, nil
}

// Enroll serves [enroll.Path] to machines without a certificate.
func (r *Roster) Enroll() http.Handler {
	sources := ratelimit.New[netip.Prefix](ratelimit.Limit{PerSecond: enrollRate, Burst: enrollBurst}, enrollSources)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		from := httpx.Source(q)
		out, err := []byte(nil), sources.Take(httpx.SourceNetwork(from), 1).Err("requests to join")
		switch {
		case err != nil:
		case q.Method == http.MethodGet:
			var a *mtls.Authority
			if a, err = mtls.OpenAuthority(r.Enrollment.Keys); err == nil {
				out = a.PEM()
			}
		case q.Method == http.MethodPost:
			out, err = r.enroll(q.Context(), from, http.MaxBytesReader(w, q.Body, enroll.RequestMax))
		default:
			err = doze.Errorf(doze.Unsupported, "this takes GET and POST")
		}
		if err != nil {
			httpx.WriteError(w, q, err)
			return
		}
		_, _ = w.Write(out) // the machine is gone, then
	})
}

// errToken is the answer to each token that is not good: it does not say why.
var errToken = doze.Errorf(doze.Forbidden, "the token is wrong or over: make another one with doze node token")

// enroll answers a machine that wants to be a node.
func (r *Roster) enroll(ctx context.Context, from netip.Addr, body io.Reader) ([]byte, error) {
	var in enroll.Request
	if err := json.NewDecoder(body).Decode(&in); err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the request to join cannot be read")
	}
	if err := r.proves(ctx, in.Code); err != nil {
		if doze.Public(err).Kind == doze.Forbidden {
			slog.WarnContext(ctx, "a machine without a good token wants to join", "source", from)
		}
		return nil, err
	}
	a, err := mtls.OpenAuthority(r.Enrollment.Keys)
	if err != nil {
		return nil, err
	}
	// A token lets machines in. It does not make one of them another one that is here. A node
	// whose certificate ended proves with it that it is the one.
	switch _, err := r.Store.Node(ctx, in.Node); {
	case err == nil && !a.Had(in.Earlier, in.CSR, in.Node):
		return nil, doze.Errorf(doze.Conflict, "a node with the id %.80q has joined already: a new machine joins with an empty data directory, and one that is this node with node.crt and node.key of before", in.Node)
	case err != nil && doze.Public(err).Kind != doze.NotFound:
		return nil, err
	}
	key, err := r.egressKey(ctx)
	if err != nil {
		return nil, err
	}
	cert, err := a.SignNode(in.CSR, in.Node, r.Enrollment.Life)
	if err != nil {
		return nil, err
	}
	slog.InfoContext(ctx, "a node got its certificate", "node", in.Node, "source", from)
	return json.Marshal(enroll.Answer{Certificate: cert, EgressKey: fmt.Appendf(nil, "%s\n", hex.EncodeToString(key))})
}

// Certify implements [fleet.Control].
func (r *Roster) Certify(ctx context.Context, node string, request []byte) ([]byte, error) {
	if len(request) > enroll.RequestMax {
		return nil, doze.Errorf(doze.TooLarge, "the request for a certificate has more than %d bytes", enroll.RequestMax)
	}
	switch _, err := r.Store.Node(ctx, node); {
	case doze.Public(err).Kind == doze.NotFound:
		return nil, doze.Wrap(err, doze.Forbidden, "the node %.80q is not on record: join with a token of doze node token", node)
	case err != nil:
		return nil, err
	}
	a, err := mtls.OpenAuthority(r.Enrollment.Keys)
	if err != nil {
		return nil, err
	}
	cert, err := a.SignNode(request, node, r.Enrollment.Life)
	if err == nil {
		slog.InfoContext(ctx, "a node got its next certificate", "node", node)
	}
	return cert, err
}

// proves is errToken unless a code is that of a token that is good now.
func (r *Roster) proves(ctx context.Context, code string) error {
	id, ok := access.CodeID(enroll.Prefix, code)
	if !ok {
		return errToken
	}
	hash, err := r.Store.JoinToken(ctx, id, time.Now())
	if err != nil && doze.Public(err).Kind != doze.NotFound {
		return err
	}
	if err != nil || !access.SameCode(hash, code) {
		return errToken
	}
	return nil
}

// egressKey is the key that opens secrets of routing rules, which all nodes have. It is made
// for the first node. It is a Conflict if nodes have another one.
func (r *Roster) egressKey(ctx context.Context) ([]byte, error) {
	if _, err := os.Lstat(r.Enrollment.Egress); errors.Is(err, fs.ErrNotExist) {
		all, err := r.Store.Nodes(ctx)
		if err != nil {
			return nil, err
		}
		if len(all) > 0 {
			return nil, doze.Errorf(doze.Conflict, "control does not have the egress.key of its nodes: copy the file from the data directory of one of them to that of control")
		}
	}
	key, err := seal.Key(r.Enrollment.Egress)
	if err != nil {
		return nil, err
	}
	opener, err := seal.NewOpener(key)
	if err != nil {
		return nil, err
	}
	own := string(opener.Sealer().Key())
	for _, m := range r.members() {
		if len(m.info.SealKey) > 0 && string(m.info.SealKey) != own {
			return nil, doze.Errorf(doze.Conflict, "control has another egress.key than its nodes: copy the file from the data directory of the node %s to that of control", m.info.ID)
		}
	}
	return key, nil
}

// tokenTTL reads how long a token is to be good.
func tokenTTL(text string, p *doze.Problems) time.Duration {
	if text == "" {
		text = doze.NodeTokenTTL
	}
	d, err := doze.ParseDuration(text)
	switch {
	case err != nil:
		p.Add("ttl", "%v", err)
	case d < tokenTTLLeast || d > doze.NodeTokenTTLMax:
		p.Add("ttl", "is %s; it must be between %s and %s", text, tokenTTLLeast, doze.NodeTokenTTLMax)
	}
	return d
}
