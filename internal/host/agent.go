package host

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
)

// agent returns the file system with the agent of this build. A new build makes
// a new one; sandboxes keep the one they were born with. So these images are in
// the data directory, which no other dozed serves, and not with those that may
// be shared: see retireAgents.
func (h *Host) agent(ctx context.Context) (string, error) {
	binary, err := os.ReadFile(h.o.Agent)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(binary)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	header := tar.Header{Name: "doze-agent", Mode: 0o755, Size: int64(len(binary)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(&header); err != nil {
		return "", err
	}
	if _, err := w.Write(binary); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	image, err := h.agents.ImportTar(ctx, "doze/agent:"+hex.EncodeToString(sum[:8]), &archive)
	return image.Path, err
}

// retireAgents removes the agents of earlier builds that no sandbox has any more, and the
// root file systems of builders that none has. It is called after the sandboxes were
// adopted and before one can be created.
func (h *Host) retireAgents(current string) error {
	used, all := h.node.Agents()
	if !all {
		slog.Warn("agents of earlier builds stay, because a sandbox with a damaged record may need one")
		return nil
	}
	gone, err := h.agents.Retain(append(used, current))
	if len(gone) > 0 {
		slog.Info("removed agents of earlier builds", "images", gone)
	}
	return err
}
