package entrypoint_test

import (
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }
