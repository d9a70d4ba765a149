package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/builder"
	"github.com/dozehq/doze/internal/catalogue"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/npm"
)

// The secrets that each Dockerfile of the catalogue may mount. They say how this host
// reaches the npm registry, and are in no layer.
const (
	// npmSecret is a file for npm, as ~/.npmrc.
	npmSecret = "npmrc"
	// npmAuthorities are authorities that vouch for the registry, in PEM. Most hosts have
	// none besides those of the system.
	npmAuthorities = "npm-authorities"
	// secretDir is where steps have secrets, unless they say otherwise.
	secretDir = "/run/secrets/"
)

// progressMost is the percentage that a build reports before its end. How many steps are
// left is known, but not how long each takes.
const progressMost = 95

// outputLines is how much of the output of a failed step its error repeats.
const outputLines = 3

// buildOwn has the platform's builder make an image of the catalogue of its Dockerfile. It
// returns the digest of the image in the library. It implements [disk.Options.Build].
func (h *Host) buildOwn(ctx context.Context, name string, report func(disk.Progress)) (string, error) {
	switch {
	case h.builder == nil:
		return "", doze.Errorf(doze.Unavailable, "the node is starting: try again")
	case h.o.Egress == EgressClosed:
		return "", doze.Errorf(doze.Unavailable, "the image %s is built of packages of Debian and npm, which --egress closed does not let the builder reach: run dozed once with --egress open, or use blaxel/base-image", name)
	}
	archive, w := io.Pipe()
	packed := make(chan struct{})
	go func() { // ends with the archive, which is closed below
		defer close(packed)
		_ = w.CloseWithError(catalogue.Context(name, w)) // never fails
	}()
	defer func() {
		_ = archive.Close() // never fails
		<-packed
	}()
	o := fleet.BuildOrder{
		ID: "catalogue-" + name + "-" + strings.ToLower(rand.Text()), Workspace: builder.Platform, WorkspaceID: builder.Platform,
		Secrets: npmSecrets(npm.Find(ctx)), Network: new(doze.Network),
	}
	built, err := h.builder.Build(ctx, o, archive, func(e fleet.BuildEvent) {
		if p, ok := progressOf(e); ok {
			report(p)
		}
	})
	if err != nil {
		return "", buildProblem(name, err)
	}
	return built.Digest, nil
}

// npmSecrets are how a step reaches a registry.
func npmSecrets(r npm.Registry) map[string]string {
	secrets := map[string]string{npmSecret: r.Config(secretDir + npmAuthorities)}
	if len(r.Authorities) > 0 {
		secrets[npmAuthorities] = string(r.Authorities)
	}
	return secrets
}

// progressOf is an event of a build as callers of the library see it, if it says that a step
// began.
func progressOf(e fleet.BuildEvent) (p disk.Progress, ok bool) {
	if e.State != fleet.BuildStarted {
		return p, false
	}
	p.Step = e.Name
	if e.Step > 0 && e.Steps > 0 {
		p.Percent = progressMost * (e.Step - 1) / e.Steps
	}
	return p, true
}

// buildProblem is a failed build for a caller who wrote no Dockerfile: it is no mistake of
// the request.
func buildProblem(name string, err error) error {
	where, failed := fleet.BuildFailureOf(err)
	if !failed {
		return fmt.Errorf("build the image %s: %w", name, err)
	}
	message := fmt.Sprintf("the image %s could not be built: line %d of its Dockerfile: %s", name, where.Line, doze.Public(err).Message)
	if last := where.Output[max(0, len(where.Output)-outputLines):]; len(last) > 0 {
		message += ": " + strings.Join(last, "; ")
	}
	return doze.Wrap(err, doze.Unavailable, "%s", message)
}
