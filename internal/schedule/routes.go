package schedule

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/sandboxes/{name}/schedules", "sandboxes:get", "List the schedules of a sandbox", api.Read((*Server).schedulesOf).Asks("show_secrets", "type")),
	api.POST("/sandboxes/{name}/schedules", "sandboxes:update", "Create a schedule", api.Write[doze.Schedule]((*Server).createSchedule).
		About("A time of the past, or one that never comes, is 400.")),
	api.GET("/sandboxes/{name}/schedules/{schedule}", "sandboxes:get", "Read a schedule", api.Read((*Server).schedule).Asks("show_secrets")),
	api.PUT("/sandboxes/{name}/schedules/{schedule}", "sandboxes:update", "Update a schedule", api.Write[doze.Schedule]((*Server).updateSchedule).
		About("A masked value of input.env means the value of before.")),
	api.DELETE("/sandboxes/{name}/schedules/{schedule}", "sandboxes:update", "Delete a schedule", api.Read((*Server).deleteSchedule)),
	api.GET("/sandboxes/{name}/schedule-executions", "sandboxes:get", "List the executions of schedules of a sandbox", api.Read((*Server).executionsOf).Asks("status", "schedule", "since", "until").
		About("An execution says whether the sandbox took the process, not how the process ended.")),
	api.GET("/schedules", "sandboxes:list", "List the schedules of the workspace", api.Read((*Server).listSchedules).Asks("show_secrets", "type", "sandbox")),
	api.GET("/schedules/metrics", "sandboxes:list", "Count the executions of schedules", api.Read((*Server).scheduleMetrics).Asks("since", "until")),
	api.GET("/schedule-executions", "sandboxes:list", "List the executions of schedules", api.Read((*Server).listExecutions).Asks("status", "sandbox", "schedule", "since", "until").
		About("An execution says whether the sandbox took the process, not how the process ended.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{
		Routes: api.Bind(s, rows),
		Schemas: openapi.Schemas{
			Types: map[reflect.Type]*openapi.Schema{
				reflect.TypeFor[doze.ExecutionStatus](): new(api.Words(string(doze.ExecutionSucceeded), string(doze.ExecutionFailed))),
			},
			Members: map[string]openapi.Schema{
				"Schedule.type":            api.Words(doze.ScheduleCron, doze.ScheduleAt, doze.ScheduleSleep),
				"Schedule.value":           api.Text("five fields of cron in UTC, a moment, or a duration from now: by the type"),
				"Schedule.maxExecutions":   {Minimum: new(0), Maximum: new(doze.ExecutionsMax), Default: doze.ExecutionsDefault},
				"ScheduleInput.command":    api.Letters(doze.CommandMax),
				"ScheduleInput.name":       api.Letters(doze.ProcessNameMax),
				"ScheduleInput.env":        {MaxProperties: doze.EnvsMax},
				"ScheduleInput.workingDir": api.Letters(doze.WorkingDirMax),
				"ScheduleInput.timeout":    {Minimum: new(0), Maximum: new(doze.RunTimeoutMax), Default: doze.RunTimeoutDefault, Description: "in seconds; 0 is none"},
			},
			Unset: []string{"Schedule.sandbox"},
		},
	}
}
