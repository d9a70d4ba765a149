package tenancy_test

import (
	"testing"

	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }
