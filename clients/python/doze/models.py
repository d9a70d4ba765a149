# Written by internal/python. Do not change it: run make gen.
"""What the APIs take and answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(kw_only=True)
class APIKey:
    api_key: str | None = field(default=None, metadata={"json": "apiKey"})
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    expires_in: str | None = field(default=None)
    id: str
    last_used_at: str | None = field(default=None, metadata={"json": "lastUsedAt"})
    name: str
    scopes: list[str]
    sub: str
    sub_type: Literal["user", "service_account"]
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})


@dataclass(kw_only=True)
class AcceptRequest:
    family_name: str | None = field(default=None)
    given_name: str | None = field(default=None)
    password: str
    token: str


@dataclass(kw_only=True)
class AccountRequest:
    description: str | None = field(default=None)
    name: str | None = field(default=None)
    scopes: list[str] | None = field(default=None)


@dataclass(kw_only=True)
class Addresses:
    description: str
    ipv4_cidrs: list[str] = field(metadata={"json": "ipv4Cidrs"})
    ipv6_cidrs: list[str] = field(metadata={"json": "ipv6Cidrs"})


@dataclass(kw_only=True)
class Archive:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    generation: str | None = field(default=None)
    key: str | None = field(default=None)
    restore: Unarchive | None = field(default=None)
    restore_started_at: str | None = field(default=None, metadata={"json": "restoreStartedAt"})
    size: int | None = field(default=None)
    started_at: str | None = field(default=None, metadata={"json": "startedAt"})


@dataclass(kw_only=True)
class ArchiveChange:
    kind: str
    path: str
    #: bytes of a regular file
    size: int


@dataclass(kw_only=True)
class ArchiveExportRequest:
    #: answer 202 at once; archiveStatus tells how it goes
    async_: bool | None = field(default=None, metadata={"json": "async"})
    #: say what would be sent, and change nothing
    dry_run: bool | None = field(default=None, metadata={"json": "dryRun"})
    #: paths to leave out
    excludes: list[str] | None = field(default=None)
    #: headers of the uploads
    headers: dict[str, str] | None = field(default=None)
    #: the directory that has the files of the image, to compare with
    image_mount_point: str = field(metadata={"json": "imageMountPoint"})
    multipart: ArchivePartsRequest | None = field(default=None)
    #: list the commands in the archive
    save_processes: bool | None = field(default=None, metadata={"json": "saveProcesses"})
    #: how long processes may take to end; 0 kills at once
    stop_timeout_seconds: int | None = field(default=None, metadata={"json": "stopTimeoutSeconds"})
    #: where the tar goes by PUT; not with multipart
    url: str | None = field(default=None)


@dataclass(kw_only=True)
class ArchiveManifest:
    added: int | None = field(default=None)
    api_version: str | None = field(default=None, metadata={"json": "apiVersion"})
    created_at: str = field(metadata={"json": "createdAt"})
    deleted: list[str] | None = field(default=None)
    excludes: list[str] | None = field(default=None)
    modified: int | None = field(default=None)
    payload_bytes: int | None = field(default=None, metadata={"json": "payloadBytes"})
    processes: bool | None = field(default=None)
    root: str
    version: int


@dataclass(kw_only=True)
class ArchivePartsRequest:
    abort_url: str | None = field(default=None, metadata={"json": "abortUrl"})
    complete_url: str = field(metadata={"json": "completeUrl"})
    #: bytes of all parts but the last
    part_size: int = field(metadata={"json": "partSize"})
    part_urls: list[str] = field(metadata={"json": "partUrls"})


@dataclass(kw_only=True)
class ArchiveProgress:
    error: str | None = field(default=None)
    finished_at: str | None = field(default=None, metadata={"json": "finishedAt"})
    size: int | None = field(default=None)
    started_at: str = field(metadata={"json": "startedAt"})
    state: Literal["running", "succeeded", "failed"]
    uploaded: bool | None = field(default=None)


@dataclass(kw_only=True)
class ArchiveResult:
    changes: list[ArchiveChange] | None = field(default=None)
    duration: str | None = field(default=None)
    manifest: ArchiveManifest
    size: int
    stopped_processes: list[str] | None = field(default=None, metadata={"json": "stoppedProcesses"})
    uploaded: bool


@dataclass(kw_only=True)
class ArchiveStatus:
    export: ArchiveProgress | None = field(default=None)
    reason: str | None = field(default=None)
    since: str | None = field(default=None)
    state: Literal["active", "quiescing", "quiesced"]
    stopped_processes: list[str] | None = field(default=None, metadata={"json": "stoppedProcesses"})


@dataclass(kw_only=True)
class AuditActor:
    key: str | None = field(default=None)
    sub: str | None = field(default=None)
    type: str | None = field(default=None)


@dataclass(kw_only=True)
class AuditLine:
    action: str
    actor: AuditActor | None = field(default=None)
    client_request_id: str | None = field(default=None, metadata={"json": "clientRequestId"})
    count: int | None = field(default=None)
    detail: str | None = field(default=None)
    error: str | None = field(default=None)
    id: str
    method: str | None = field(default=None)
    object: AuditObject | None = field(default=None)
    outcome: str
    request_id: str | None = field(default=None, metadata={"json": "requestId"})
    route: str | None = field(default=None)
    source: str | None = field(default=None)
    status: int | None = field(default=None)
    time: str
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class AuditObject:
    kind: str | None = field(default=None)
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class Build:
    args: dict[str, str] | None = field(default=None)
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    digest: str | None = field(default=None)
    dockerfile: str | None = field(default=None)
    ended_at: str | None = field(default=None, metadata={"json": "endedAt"})
    failure: BuildFailure | None = field(default=None)
    id: str
    #: what spec.runtime.image of a sandbox takes
    image: str | None = field(default=None)
    name: str
    no_cache: bool | None = field(default=None, metadata={"json": "noCache"})
    #: in the queue; 1 is the next
    position: int | None = field(default=None)
    resource_type: Literal["sandbox", "image"] = field(metadata={"json": "resourceType"})
    size: int | None = field(default=None)
    started_at: str | None = field(default=None, metadata={"json": "startedAt"})
    status: Literal["UPLOADING", "BUILDING", "DEPLOYING", "DEPLOYED", "BUILT", "FAILED", "CANCELLED"]
    tag: str
    target: str | None = field(default=None)
    upload_url: str | None = field(default=None, metadata={"json": "uploadUrl"})
    workspace: str


@dataclass(kw_only=True)
class BuildEvent:
    at: str
    current: int | None = field(default=None)
    failure: BuildFailure | None = field(default=None)
    image: str | None = field(default=None)
    line: int | None = field(default=None)
    name: str | None = field(default=None)
    stage: str | None = field(default=None)
    state: Literal["waiting", "started", "cached", "done", "failed", "canceled"] | None = field(default=None)
    status: str | None = field(default=None)
    step: int | None = field(default=None)
    steps: int | None = field(default=None)
    stream: str | None = field(default=None)
    text: str | None = field(default=None)
    #: in milliseconds
    took_ms: int | None = field(default=None, metadata={"json": "tookMs"})
    total: int | None = field(default=None)
    vertex: str | None = field(default=None)


@dataclass(kw_only=True)
class BuildFailure:
    code: int | None = field(default=None)
    command: str | None = field(default=None)
    line: int | None = field(default=None)
    message: str
    output: list[str] | None = field(default=None)
    step: int | None = field(default=None)


@dataclass(kw_only=True)
class BuildRequest:
    args: dict[str, str] | None = field(default=None)
    dockerfile: str | None = field(default=None)
    #: of the image, with or without a tag
    name: str
    no_cache: bool | None = field(default=None, metadata={"json": "noCache"})
    secrets: dict[str, str] | None = field(default=None)
    target: str | None = field(default=None)


@dataclass(kw_only=True)
class Caller:
    role: str
    scopes: list[str]
    sub: str
    type: str
    workspace: str


@dataclass(kw_only=True)
class Checkup:
    checked_at: str = field(metadata={"json": "checkedAt"})
    findings: list[Finding]
    host: str
    sandboxes: bool


@dataclass(kw_only=True)
class Cleaned:
    deleted: int
    message: str


@dataclass(kw_only=True)
class ClientRequest:
    client_name: str
    redirect_uris: list[str]


@dataclass(kw_only=True)
class Configuration:
    continents: list[Named]
    countries: list[Named]
    detected_region: str = field(metadata={"json": "detectedRegion"})
    private_locations: list[Named] = field(metadata={"json": "privateLocations"})
    regions: list[Region]


@dataclass(kw_only=True)
class CustomDomain:
    metadata: CustomDomainMetadata
    spec: CustomDomainSpec


@dataclass(kw_only=True)
class CustomDomainMetadata:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    labels: dict[str, str] | None = field(default=None)
    name: str
    shared_from_workspace: str | None = field(default=None, metadata={"json": "sharedFromWorkspace"})
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class CustomDomainMetadataRequest:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    labels: dict[str, str] | None = field(default=None)
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class CustomDomainRequest:
    metadata: CustomDomainMetadataRequest | None = field(default=None)
    spec: CustomDomainSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class CustomDomainSpec:
    cname_records: str = field(metadata={"json": "cnameRecords"})
    domain_type: Literal["previews"] = field(metadata={"json": "domainType"})
    fallback_preview_id: str | None = field(default=None, metadata={"json": "fallbackPreviewId"})
    last_verified_at: str | None = field(default=None, metadata={"json": "lastVerifiedAt"})
    region: str
    status: Literal["pending", "verified", "failed"]
    subject_alternative_names: list[str] = field(metadata={"json": "subjectAlternativeNames"})
    txt_records: dict[str, str] = field(metadata={"json": "txtRecords"})
    verification_error: str | None = field(default=None, metadata={"json": "verificationError"})


@dataclass(kw_only=True)
class CustomDomainSpecRequest:
    domain_type: Literal["previews"] | None = field(default=None, metadata={"json": "domainType"})
    fallback_preview_id: str | None = field(default=None, metadata={"json": "fallbackPreviewId"})
    region: str | None = field(default=None)


@dataclass(kw_only=True)
class DeclineRequest:
    token: str


@dataclass(kw_only=True)
class Deleted:
    message: str
    name: str


@dataclass(kw_only=True)
class DeviceAnswer:
    device_code: str
    expires_in: int
    interval: int
    user_code: str
    verification_uri: str
    verification_uri_complete: str


@dataclass(kw_only=True)
class Directory:
    files: list[File]
    name: str
    path: str
    subdirectories: list[Subdirectory]


@dataclass(kw_only=True)
class DiskUsage:
    archive_bytes: int = field(metadata={"json": "archiveBytes"})
    checkpoint_bytes: int = field(metadata={"json": "checkpointBytes"})
    drive_bytes: int = field(metadata={"json": "driveBytes"})
    scratch_bytes: int = field(metadata={"json": "scratchBytes"})
    storage_bytes: int = field(metadata={"json": "storageBytes"})
    storage_limit_bytes: int = field(metadata={"json": "storageLimitBytes"})
    volume_bytes: int = field(metadata={"json": "volumeBytes"})


@dataclass(kw_only=True)
class DomainShare:
    status: str
    #: or account: all
    workspace: str
    workspace_display_name: str | None = field(default=None, metadata={"json": "workspaceDisplayName"})


@dataclass(kw_only=True)
class Drained:
    moved: int
    stayed: int


@dataclass(kw_only=True)
class Drive:
    events: list[Event] | None = field(default=None)
    metadata: Metadata
    spec: DriveSpec
    state: DriveState
    status: str | None = field(default=None)


@dataclass(kw_only=True)
class DriveMount:
    drive_name: str = field(metadata={"json": "driveName"})
    drive_path: str = field(metadata={"json": "drivePath"})
    gid_map: str = field(metadata={"json": "gidMap"})
    mount_path: str = field(metadata={"json": "mountPath"})
    read_only: bool = field(metadata={"json": "readOnly"})
    uid_map: str = field(metadata={"json": "uidMap"})


@dataclass(kw_only=True)
class DriveMountRequest:
    drive_name: str = field(metadata={"json": "driveName"})
    drive_path: str | None = field(default=None, metadata={"json": "drivePath"})
    gid_map: str | None = field(default=None, metadata={"json": "gidMap"})
    mount_path: str = field(metadata={"json": "mountPath"})
    read_only: bool | None = field(default=None, metadata={"json": "readOnly"})
    uid_map: str | None = field(default=None, metadata={"json": "uidMap"})


@dataclass(kw_only=True)
class DriveMounts:
    mounts: list[DriveMount]


@dataclass(kw_only=True)
class DrivePermission:
    labels: dict[str, str] | None = field(default=None)
    mode: Literal["read", "read-write"] | None = field(default=None)
    path: str | None = field(default=None)


@dataclass(kw_only=True)
class DriveRequest:
    metadata: MetadataRequest | None = field(default=None)
    spec: DriveSpec | None = field(default=None)


@dataclass(kw_only=True)
class DriveSpec:
    permissions: list[DrivePermission] | None = field(default=None)
    region: str | None = field(default=None)


@dataclass(kw_only=True)
class DriveState:
    #: <endpoint>/<bucket>
    s3_url: str | None = field(default=None, metadata={"json": "s3Url"})


@dataclass(kw_only=True)
class DriveToken:
    access_token: str
    expires_in: int
    token_type: str


@dataclass(kw_only=True)
class Egress:
    gateway: str | None = field(default=None)
    mode: Literal["dedicated"] | None = field(default=None)
    policies: list[EgressPolicy] | None = field(default=None)


@dataclass(kw_only=True)
class EgressDestination:
    count: int
    first_at: str = field(metadata={"json": "firstAt"})
    host: str
    last_at: str = field(metadata={"json": "lastAt"})
    port: int
    protocol: str
    reason: str | None = field(default=None)
    rule: str
    verdict: str


@dataclass(kw_only=True)
class EgressPolicy:
    destinations: list[str]
    mode: Literal["dedicated", "shared"]
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class EgressSummary:
    destinations: list[EgressDestination]
    since: str | None = field(default=None)


@dataclass(kw_only=True)
class Entrypoint:
    exit_code: int | None = field(default=None, metadata={"json": "exitCode"})
    health: Literal["starting", "healthy", "unhealthy"] | None = field(default=None)
    #: the end of what the last check wrote
    health_output: str | None = field(default=None, metadata={"json": "healthOutput"})
    #: why it could not be started
    message: str | None = field(default=None)
    #: that the image exposes, as in 80/tcp
    ports: list[str] | None = field(default=None)
    restart_count: int | None = field(default=None, metadata={"json": "restartCount"})
    #: running, completed, failed, stopped or killed; disabled if the caller wants none; absent while nobody knows
    status: str | None = field(default=None)


@dataclass(kw_only=True)
class Env:
    name: str
    secret: bool | None = field(default=None)
    #: masked in answers, if it is secret: sent back so, it is unchanged
    value: str | None = field(default=None)
    #: one of fieldRef, resourceFieldRef and secretKeyRef, as in Kubernetes
    value_from: dict[str, Any] | None = field(default=None, metadata={"json": "valueFrom"})


@dataclass(kw_only=True)
class Error:
    code: int
    error: str
    message: str


@dataclass(kw_only=True)
class Event:
    canary_revision: str | None = field(default=None, metadata={"json": "canaryRevision"})
    message: str
    revision: str | None = field(default=None)
    status: str
    time: str
    type: str


@dataclass(kw_only=True)
class Execution:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    error: str | None = field(default=None)
    executed_at: str | None = field(default=None, metadata={"json": "executedAt"})
    id: str
    process_name: str | None = field(default=None, metadata={"json": "processName"})
    sandbox: str
    schedule_id: str = field(metadata={"json": "scheduleId"})
    status: Literal["succeeded", "failed"]
    status_code: int = field(metadata={"json": "statusCode"})
    timeout: int


@dataclass(kw_only=True)
class ExpirationPolicy:
    action: Literal["delete"]
    type: Literal["ttl-idle", "ttl-max-age", "date"]
    #: a duration such as 24h or, of the type date, a moment
    value: str


@dataclass(kw_only=True)
class Feature:
    enabled: bool
    evaluated_at: str = field(metadata={"json": "evaluatedAt"})
    feature_key: str = field(metadata={"json": "featureKey"})
    payload: Any
    variant: str


@dataclass(kw_only=True)
class FeedMessage:
    at: str
    gone: list[str] | None = field(default=None)
    sandboxes: list[FeedSandbox] | None = field(default=None)
    total: int | None = field(default=None)


@dataclass(kw_only=True)
class FeedSandbox:
    busy: float
    counted_since: str = field(metadata={"json": "countedSince"})
    created_at: str = field(metadata={"json": "createdAt"})
    disk: DiskUsage
    image: str
    labels: dict[str, str] | None = field(default=None)
    last_used_at: str = field(metadata={"json": "lastUsedAt"})
    last_wake: Trace | None = field(default=None, metadata={"json": "lastWake"})
    memory: MemoryUsage
    name: str
    network: NetworkUsage
    origin: Origin | None = field(default=None)
    processor: ProcessorUsage
    sleeps: int
    state: Literal["RUNNING", "STANDBY"]
    status: Literal["DEPLOYING", "DEPLOYED", "DEACTIVATING", "DEACTIVATED", "ARCHIVING", "ARCHIVED", "UNARCHIVING", "DELETING", "TERMINATED", "FAILED", "UPLOADING", "BUILDING"]
    tier: str
    version: str
    wakes: WakeUsage


@dataclass(kw_only=True)
class File:
    group: str
    last_modified: str = field(metadata={"json": "lastModified"})
    name: str
    #: a name, or a number without one
    owner: str
    path: str
    #: octal, such as 644
    permissions: str
    #: bytes
    size: int


@dataclass(kw_only=True)
class FileContent:
    #: the text of the file; bytes that are not UTF-8 are U+FFFD
    content: str
    group: str
    last_modified: str = field(metadata={"json": "lastModified"})
    name: str
    #: a name, or a number without one
    owner: str
    path: str
    #: octal, such as 644
    permissions: str
    #: bytes
    size: int


@dataclass(kw_only=True)
class FileEvent:
    error: str | None
    name: str
    #: CREATE, WRITE, REMOVE, RENAME or CHMOD; empty with an error
    op: str
    path: str


@dataclass(kw_only=True)
class FileRequest:
    #: the text of the file
    content: str | None = field(default=None)
    #: make a directory; then there is no content
    is_directory: bool | None = field(default=None, metadata={"json": "isDirectory"})
    #: octal, such as 0644, which is what a file has otherwise; a directory has 0755
    permissions: str | None = field(default=None)


@dataclass(kw_only=True)
class Finding:
    found: str
    name: str
    remedy: str
    severity: str


@dataclass(kw_only=True)
class Firewall:
    rulesets: list[Literal["default", "proxy", "dedicated-ip"]] | None = field(default=None)


@dataclass(kw_only=True)
class Flavor:
    name: str
    type: str


@dataclass(kw_only=True)
class ForkRequest:
    custom_domain: str | None = field(default=None, metadata={"json": "customDomain"})
    envs: list[Env] | None = field(default=None)
    memory: int | None = field(default=None)
    port: int | None = field(default=None)
    prefix: str | None = field(default=None)
    snapshot_id: str | None = field(default=None, metadata={"json": "snapshotId"})
    target_name: str = field(metadata={"json": "targetName"})
    target_type: Literal["sandbox"] = field(metadata={"json": "targetType"})
    traffic: int | None = field(default=None)


@dataclass(kw_only=True)
class ForkResponse:
    name: str
    snapshot_id: str = field(metadata={"json": "snapshotId"})
    type: str


@dataclass(kw_only=True)
class FoundFile:
    #: relative to the directory that was searched
    path: str
    type: Literal["file", "directory"]


@dataclass(kw_only=True)
class FoundFiles:
    #: a bound cut the answer
    incomplete: bool | None = field(default=None)
    matches: list[FoundFile]
    total: int


@dataclass(kw_only=True)
class History:
    from_: str = field(metadata={"json": "from"})
    series: list[HistorySeries]
    step: int
    to: str


@dataclass(kw_only=True)
class HistorySeries:
    labels: dict[str, str] | None = field(default=None)
    name: str
    unit: str
    values: list[float]


@dataclass(kw_only=True)
class HubImage:
    categories: list[str]
    coming_soon: bool
    description: str
    display_name: str = field(metadata={"json": "displayName"})
    enterprise: bool
    hidden: bool
    icon: str | None = field(default=None)
    image: str
    long_description: str | None = field(default=None, metadata={"json": "longDescription"})
    memory: int
    name: str
    ports: list[Port]
    tags: str | None = field(default=None)
    url: str | None = field(default=None)


@dataclass(kw_only=True)
class Image:
    metadata: ImageMetadata
    spec: ImageSpec


@dataclass(kw_only=True)
class ImageConfig:
    cmd: list[str] | None = field(default=None)
    entrypoint: list[str] | None = field(default=None)
    env: list[str] | None = field(default=None)
    health: ImageHealth | None = field(default=None)
    labels: dict[str, str] | None = field(default=None)
    ports: list[str] | None = field(default=None)
    stop_signal: str | None = field(default=None, metadata={"json": "stopSignal"})
    user: str | None = field(default=None)
    work_dir: str | None = field(default=None, metadata={"json": "workDir"})


@dataclass(kw_only=True)
class ImageHealth:
    interval_seconds: float | None = field(default=None, metadata={"json": "intervalSeconds"})
    retries: int | None = field(default=None)
    start_interval_seconds: float | None = field(default=None, metadata={"json": "startIntervalSeconds"})
    start_period_seconds: float | None = field(default=None, metadata={"json": "startPeriodSeconds"})
    test: list[str]
    timeout_seconds: float | None = field(default=None, metadata={"json": "timeoutSeconds"})


@dataclass(kw_only=True)
class ImageMetadata:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    last_deployed_at: str | None = field(default=None, metadata={"json": "lastDeployedAt"})
    name: str
    resource_type: str = field(metadata={"json": "resourceType"})
    source_workspace: str | None = field(default=None, metadata={"json": "sourceWorkspace"})
    status: Literal["BUILT", "UPLOADING", "BUILDING", "DEPLOYING", "FAILED"]
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    workspace: str


@dataclass(kw_only=True)
class ImageRequest:
    #: in a registry; leave it out to build one
    image: str | None = field(default=None)
    name: str
    resource_type: str | None = field(default=None, metadata={"json": "resourceType"})


@dataclass(kw_only=True)
class ImageResponse:
    image: str | None = field(default=None)
    message: str
    name: str
    resource_type: str = field(metadata={"json": "resourceType"})


@dataclass(kw_only=True)
class ImageShare:
    account_id: str = field(metadata={"json": "accountId"})
    status: str
    workspace: str


@dataclass(kw_only=True)
class ImageSpec:
    size: int
    tags: list[ImageTag]


@dataclass(kw_only=True)
class ImageTag:
    build: bool | None = field(default=None)
    config: ImageConfig | None = field(default=None)
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    image: str
    name: str
    size: int
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})


@dataclass(kw_only=True)
class Invitation:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    email: str
    expires_at: str | None = field(default=None, metadata={"json": "expiresAt"})
    invited_by: str = field(metadata={"json": "invitedBy"})
    role: Literal["admin", "member"]
    token: str | None = field(default=None)
    workspace: str


@dataclass(kw_only=True)
class InviteRequest:
    email: str
    role: Literal["admin", "member"] | None = field(default=None)


@dataclass(kw_only=True)
class KeyRequest:
    #: a duration such as 30s, 15m, 24h, 7d or 2w
    expires_in: str | None = field(default=None)
    name: str | None = field(default=None)
    scopes: list[str] | None = field(default=None)


@dataclass(kw_only=True)
class Lifecycle:
    expiration_policies: list[ExpirationPolicy] | None = field(default=None, metadata={"json": "expirationPolicies"})
    #: a duration such as 30s, 15m, 24h, 7d or 2w
    terminated_retention: str | None = field(default=None, metadata={"json": "terminatedRetention"})


@dataclass(kw_only=True)
class ListMeta:
    has_more: bool = field(metadata={"json": "hasMore"})
    next_cursor: str | None = field(default=None, metadata={"json": "nextCursor"})
    total: int


@dataclass(kw_only=True)
class Location:
    flavors: list[Flavor]
    location: str
    region: str
    status: str


@dataclass(kw_only=True)
class Log:
    logs: list[LogLine]
    next_cursor: str | None = field(default=None, metadata={"json": "nextCursor"})
    total_count: int = field(metadata={"json": "totalCount"})


@dataclass(kw_only=True)
class LogLine:
    message: str
    process: str | None = field(default=None)
    severity: str
    stream: str | None = field(default=None)
    timestamp: str
    trace_id: str


@dataclass(kw_only=True)
class MemoryUsage:
    cache_bytes: int = field(metadata={"json": "cacheBytes"})
    engine_bytes: int = field(metadata={"json": "engineBytes"})
    guest_bytes: int = field(metadata={"json": "guestBytes"})
    limit_bytes: int = field(metadata={"json": "limitBytes"})
    resident_bytes: int = field(metadata={"json": "residentBytes"})
    swap_bytes: int = field(metadata={"json": "swapBytes"})


@dataclass(kw_only=True)
class Metadata:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    external_id: str | None = field(default=None, metadata={"json": "externalId"})
    labels: dict[str, str] | None = field(default=None)
    name: str
    plan: str | None = field(default=None)
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})
    url: str | None = field(default=None)
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class MetadataRequest:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    external_id: str | None = field(default=None, metadata={"json": "externalId"})
    labels: dict[str, str] | None = field(default=None)
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class MonitorRequest:
    #: an address that gets POST with {pid, port} for each new port
    callback: str


@dataclass(kw_only=True)
class MountedDrive:
    drive_name: str = field(metadata={"json": "driveName"})
    drive_path: str = field(metadata={"json": "drivePath"})
    gid_map: str = field(metadata={"json": "gidMap"})
    message: str
    mount_path: str = field(metadata={"json": "mountPath"})
    read_only: bool = field(metadata={"json": "readOnly"})
    success: bool
    uid_map: str = field(metadata={"json": "uidMap"})


@dataclass(kw_only=True)
class MoveRequest:
    node: str | None = field(default=None)


@dataclass(kw_only=True)
class Moved:
    node: str


@dataclass(kw_only=True)
class NameRequest:
    name: str


@dataclass(kw_only=True)
class Named:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    name: str


@dataclass(kw_only=True)
class Network:
    allowed_domains: list[str] | None = field(default=None, metadata={"json": "allowedDomains"})
    egress: Egress | None = field(default=None)
    firewall: Firewall | None = field(default=None)
    forbidden_domains: list[str] | None = field(default=None, metadata={"json": "forbiddenDomains"})
    proxy: Proxy | None = field(default=None)
    subnet: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkMetadata:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    gateway_name: str | None = field(default=None, metadata={"json": "gatewayName"})
    name: str
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})
    vpc_name: str | None = field(default=None, metadata={"json": "vpcName"})
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkMetadataRequest:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkRequest:
    allowed_domains: list[str] | None = field(default=None, metadata={"json": "allowedDomains"})
    egress: Egress | None = field(default=None)
    firewall: Firewall | None = field(default=None)
    forbidden_domains: list[str] | None = field(default=None, metadata={"json": "forbiddenDomains"})
    proxy: ProxyRequest | None = field(default=None)
    subnet: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkResource:
    events: list[Event]
    metadata: NetworkMetadata
    spec: NetworkSpec
    status: str


@dataclass(kw_only=True)
class NetworkResourceRequest:
    metadata: NetworkMetadataRequest | None = field(default=None)
    spec: NetworkSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class NetworkSpec:
    ip_family: Literal["IPv4", "IPv6"] | None = field(default=None, metadata={"json": "ipFamily"})
    public_ip: str | None = field(default=None, metadata={"json": "publicIp"})
    region: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkSpecRequest:
    ip_family: Literal["IPv4", "IPv6"] | None = field(default=None, metadata={"json": "ipFamily"})
    region: str | None = field(default=None)


@dataclass(kw_only=True)
class NetworkUsage:
    received_bytes: int = field(metadata={"json": "receivedBytes"})
    sent_bytes: int = field(metadata={"json": "sentBytes"})


@dataclass(kw_only=True)
class Node:
    awake: int
    created_at: str = field(metadata={"json": "createdAt"})
    driver: str
    epoch: int
    id: str
    memory: int
    present: bool
    renewed_at: str = field(metadata={"json": "renewedAt"})
    reserved: int
    sandboxes: int
    state: str
    unrecorded: int | None = field(default=None)
    url: str
    version: str


@dataclass(kw_only=True)
class NodeLoss:
    kind: str
    name: str
    older: bool | None = field(default=None)
    workspace: str


@dataclass(kw_only=True)
class NodeSandbox:
    last_used_at: str | None = field(default=None, metadata={"json": "lastUsedAt"})
    name: str
    state: str | None = field(default=None)
    status: str
    workspace: str


@dataclass(kw_only=True)
class NodeSandboxes:
    sandboxes: list[NodeSandbox]
    total: int


@dataclass(kw_only=True)
class NodeToken:
    control: str
    expires_at: str = field(metadata={"json": "expiresAt"})
    token: str


@dataclass(kw_only=True)
class NodeTokenRequest:
    ttl: str | None = field(default=None)


@dataclass(kw_only=True)
class OAuthClient:
    client_id: str
    client_name: str
    created_at: str | None = field(default=None)
    redirect_uris: list[str]


@dataclass(kw_only=True)
class Origin:
    sandbox_name: str = field(metadata={"json": "sandboxName"})
    snapshot_id: str = field(metadata={"json": "snapshotId"})
    snapshot_name: str = field(metadata={"json": "snapshotName"})


@dataclass(kw_only=True)
class PasswordRequest:
    old_password: str | None = field(default=None)
    password: str


@dataclass(kw_only=True)
class PlatformError:
    action: str
    code: str
    do_not: str
    docs_url: str
    message: str
    origin: str
    retryable: bool
    status: int
    timestamp: str


@dataclass(kw_only=True)
class Policy:
    metadata: Metadata
    spec: PolicySpec


@dataclass(kw_only=True)
class PolicyEntry:
    name: str
    type: str


@dataclass(kw_only=True)
class PolicyMaxTokens:
    granularity: str | None = field(default=None)
    input: int | None = field(default=None)
    output: int | None = field(default=None)
    ratio_input_over_output: int | None = field(default=None, metadata={"json": "ratioInputOverOutput"})
    step: int | None = field(default=None)
    total: int | None = field(default=None)


@dataclass(kw_only=True)
class PolicyRequest:
    metadata: MetadataRequest | None = field(default=None)
    spec: PolicySpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class PolicySpec:
    flavors: list[PolicyEntry] | None = field(default=None)
    locations: list[PolicyEntry] | None = field(default=None)
    max_tokens: PolicyMaxTokens | None = field(default=None, metadata={"json": "maxTokens"})
    resource_types: list[str] | None = field(default=None, metadata={"json": "resourceTypes"})
    sandbox: bool | None = field(default=None)
    type: Literal["location", "flavor", "maxToken"]


@dataclass(kw_only=True)
class PolicySpecRequest:
    flavors: list[PolicyEntry] | None = field(default=None)
    locations: list[PolicyEntry] | None = field(default=None)
    max_tokens: PolicyMaxTokens | None = field(default=None, metadata={"json": "maxTokens"})
    resource_types: list[str] | None = field(default=None, metadata={"json": "resourceTypes"})
    sandbox: bool | None = field(default=None)
    type: Literal["location", "flavor", "maxToken"] | None = field(default=None)


@dataclass(kw_only=True)
class PolicyUsages:
    agents: list[str]
    functions: list[str]
    jobs: list[str]
    models: list[str]
    sandboxes: list[str]


@dataclass(kw_only=True)
class Port:
    name: str | None = field(default=None)
    protocol: Literal["HTTP", "TCP", "UDP", "TLS"] | None = field(default=None)
    target: int


@dataclass(kw_only=True)
class Preview:
    metadata: PreviewMetadata
    spec: PreviewSpec
    status: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewMetadata:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    name: str
    resource_name: str | None = field(default=None, metadata={"json": "resourceName"})
    resource_type: str | None = field(default=None, metadata={"json": "resourceType"})
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewMetadataRequest:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewRequest:
    metadata: PreviewMetadataRequest | None = field(default=None)
    spec: PreviewSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class PreviewSpec:
    custom_domain: str | None = field(default=None, metadata={"json": "customDomain"})
    #: RFC 3339, or a date alone
    expires: str | None = field(default=None)
    port: int
    prefix_url: str | None = field(default=None, metadata={"json": "prefixUrl"})
    public: bool
    region: str | None = field(default=None)
    request_headers: dict[str, str] | None = field(default=None, metadata={"json": "requestHeaders"})
    response_headers: dict[str, str] | None = field(default=None, metadata={"json": "responseHeaders"})
    #: a duration such as 30s, 15m, 24h, 7d or 2w
    ttl: str | None = field(default=None)
    url: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewSpecRequest:
    custom_domain: str | None = field(default=None, metadata={"json": "customDomain"})
    #: RFC 3339, or a date alone
    expires: str | None = field(default=None)
    port: int | None = field(default=None)
    prefix_url: str | None = field(default=None, metadata={"json": "prefixUrl"})
    public: bool | None = field(default=None)
    request_headers: dict[str, str] | None = field(default=None, metadata={"json": "requestHeaders"})
    response_headers: dict[str, str] | None = field(default=None, metadata={"json": "responseHeaders"})
    #: a duration such as 30s, 15m, 24h, 7d or 2w
    ttl: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewToken:
    metadata: PreviewTokenMetadata
    spec: PreviewTokenSpec


@dataclass(kw_only=True)
class PreviewTokenMetadata:
    name: str
    preview_name: str | None = field(default=None, metadata={"json": "previewName"})
    resource_name: str | None = field(default=None, metadata={"json": "resourceName"})
    resource_type: str | None = field(default=None, metadata={"json": "resourceType"})
    workspace: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewTokenMetadataRequest:
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewTokenRequest:
    metadata: PreviewTokenMetadataRequest | None = field(default=None)
    spec: PreviewTokenSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class PreviewTokenSpec:
    expired: bool
    expires_at: str | None = field(default=None, metadata={"json": "expiresAt"})
    token: str | None = field(default=None)


@dataclass(kw_only=True)
class PreviewTokenSpecRequest:
    expires_at: str | None = field(default=None, metadata={"json": "expiresAt"})


@dataclass(kw_only=True)
class Process:
    command: str
    completed_at: str | None = field(metadata={"json": "completedAt"})
    #: -1 after a signal
    exit_code: int = field(metadata={"json": "exitCode"})
    keep_alive: bool = field(metadata={"json": "keepAlive"})
    logs: str | None
    max_restarts: int = field(metadata={"json": "maxRestarts"})
    name: str
    #: of the first start
    pid: str
    restart_count: int = field(metadata={"json": "restartCount"})
    restart_on_failure: bool = field(metadata={"json": "restartOnFailure"})
    #: the number of the signal that ended it, or 0
    signal: int
    started_at: str = field(metadata={"json": "startedAt"})
    status: Literal["running", "completed", "failed", "stopped", "killed"]
    stderr: str
    stdin: bool
    stdout: str
    working_dir: str = field(metadata={"json": "workingDir"})


@dataclass(kw_only=True)
class ProcessEvent:
    #: output, the error, or for a result the JSON of the process
    data: str | None = field(default=None)
    type: Literal["stdout", "stderr", "keepalive", "result", "error"]


@dataclass(kw_only=True)
class ProcessOutput:
    #: stdout, then stderr
    logs: str
    stderr: str
    stdout: str


@dataclass(kw_only=True)
class ProcessPort:
    local_addr: str = field(metadata={"json": "localAddr"})
    local_port: int = field(metadata={"json": "localPort"})
    #: the process that has the socket
    pid: int
    process_name: str = field(metadata={"json": "processName"})
    protocol: str
    remote_addr: str = field(metadata={"json": "remoteAddr"})
    remote_port: int = field(metadata={"json": "remotePort"})
    #: as ss writes it, such as LISTEN
    state: str


@dataclass(kw_only=True)
class ProcessPorts:
    pid: int
    ports: list[ProcessPort]


@dataclass(kw_only=True)
class ProcessRequest:
    #: a program with arguments, or a command of the shell; empty with the name entrypoint, for the process of the image
    command: str
    #: variables besides those of the sandbox
    env: dict[str, str] | None = field(default=None)
    #: the sandbox stays awake while the process runs
    keep_alive: bool | None = field(default=None, metadata={"json": "keepAlive"})
    #: how often; negative means no limit
    max_restarts: int | None = field(default=None, metadata={"json": "maxRestarts"})
    #: to find the process by; unique among those that run
    name: str | None = field(default=None)
    #: start it again when it fails
    restart_on_failure: bool | None = field(default=None, metadata={"json": "restartOnFailure"})
    #: it gets a standard input, see writeProcessInput
    stdin: bool | None = field(default=None)
    #: seconds that the call waits; with keepAlive, after which the process is killed: 600 unless it is said, and 0 for never
    timeout: int | None = field(default=None)
    #: answer when it has ended, with its output
    wait_for_completion: bool | None = field(default=None, metadata={"json": "waitForCompletion"})
    #: answer when the process serves these ports
    wait_for_ports: list[int] | None = field(default=None, metadata={"json": "waitForPorts"})
    #: where it starts; the working directory of the image otherwise
    working_dir: str | None = field(default=None, metadata={"json": "workingDir"})


@dataclass(kw_only=True)
class ProcessorUsage:
    limit: float
    seconds: float


@dataclass(kw_only=True)
class Proxy:
    allowed_domains: list[str] | None = field(default=None, metadata={"json": "allowedDomains"})
    bypass: list[str] | None = field(default=None)
    forbidden_domains: list[str] | None = field(default=None, metadata={"json": "forbiddenDomains"})
    routing: list[ProxyTarget] | None = field(default=None)


@dataclass(kw_only=True)
class ProxyRequest:
    allowed_domains: list[str] | None = field(default=None, metadata={"json": "allowedDomains"})
    bypass: list[str] | None = field(default=None)
    forbidden_domains: list[str] | None = field(default=None, metadata={"json": "forbiddenDomains"})
    routing: list[ProxyTargetRequest] | None = field(default=None)


@dataclass(kw_only=True)
class ProxyTarget:
    body: dict[str, str] | None = field(default=None)
    destinations: list[str]
    guest_references: bool | None = field(default=None, metadata={"json": "guestReferences"})
    headers: dict[str, str] | None = field(default=None)
    mask_responses: bool | None = field(default=None, metadata={"json": "maskResponses"})


@dataclass(kw_only=True)
class ProxyTargetRequest:
    body: dict[str, str] | None = field(default=None)
    destinations: list[str]
    guest_references: bool | None = field(default=None, metadata={"json": "guestReferences"})
    headers: dict[str, str] | None = field(default=None)
    mask_responses: bool | None = field(default=None, metadata={"json": "maskResponses"})
    secrets: dict[str, str] | None = field(default=None)


@dataclass(kw_only=True)
class QuotaRequest:
    quotas: dict[str, int | None] | None = field(default=None)


@dataclass(kw_only=True)
class QuotaStatus:
    default: int
    description: str
    limit: int
    name: str
    unit: str
    used: int


@dataclass(kw_only=True)
class RankedFile:
    path: str
    #: compares within one answer
    score: int
    type: Literal["file", "directory"]


@dataclass(kw_only=True)
class RankedFiles:
    incomplete: bool | None = field(default=None)
    matches: list[RankedFile]
    total: int


@dataclass(kw_only=True)
class ReasonedAvailability:
    available: bool
    message: str
    reason: str | None = field(default=None)


@dataclass(kw_only=True)
class Received:
    build: str
    message: str


@dataclass(kw_only=True)
class Recovery:
    at: str
    checkpoint_at: str = field(metadata={"json": "checkpointAt"})


@dataclass(kw_only=True)
class Region:
    drives_available: bool = field(metadata={"json": "drivesAvailable"})
    egress_available: bool = field(metadata={"json": "egressAvailable"})
    info_generation: str = field(metadata={"json": "infoGeneration"})
    location: str
    mk31_available: bool = field(metadata={"json": "mk31Available"})
    name: str
    proxy_available: bool = field(metadata={"json": "proxyAvailable"})


@dataclass(kw_only=True)
class ReloadedVariables:
    applied: int
    generation: int
    removed: int
    #: entries that are no variables
    skipped: list[str] | None = field(default=None)


@dataclass(kw_only=True)
class RemovedNode:
    lost: list[NodeLoss]
    total: int


@dataclass(kw_only=True)
class RestoreResponse:
    name: str
    snapshot_id: str = field(metadata={"json": "snapshotId"})


@dataclass(kw_only=True)
class RightsRequest:
    workspace_creator: bool | None = field(default=None, metadata={"json": "workspaceCreator"})


@dataclass(kw_only=True)
class RoleRequest:
    role: Literal["admin", "member"] | None = field(default=None)


@dataclass(kw_only=True)
class Runtime:
    envs: list[Env] | None = field(default=None)
    #: RFC 3339, or a date alone
    expires: str | None = field(default=None)
    extra_args: dict[str, Literal["enabled", "disabled"]] | None = field(default=None, metadata={"json": "extraArgs"})
    image: str | None = field(default=None)
    #: in MiB
    memory: int | None = field(default=None)
    ports: list[Port] | None = field(default=None)
    #: in MiB; files are in memory without it
    storage: int | None = field(default=None)
    termination_grace_period_seconds: int | None = field(default=None, metadata={"json": "terminationGracePeriodSeconds"})
    #: a duration such as 30s, 15m, 24h, 7d or 2w
    ttl: str | None = field(default=None)


@dataclass(kw_only=True)
class Sandbox:
    archive: Archive | None = field(default=None)
    entrypoint: Entrypoint | None = field(default=None)
    events: list[Event] | None = field(default=None)
    #: in seconds
    expires_in: int | None = field(default=None, metadata={"json": "expiresIn"})
    last_used_at: str | None = field(default=None, metadata={"json": "lastUsedAt"})
    metadata: Metadata
    node_generation: str | None = field(default=None, metadata={"json": "nodeGeneration"})
    origin: Origin | None = field(default=None)
    recovery: Recovery | None = field(default=None)
    spec: SandboxSpec
    state: Literal["RUNNING", "STANDBY"] | None = field(default=None)
    status: Literal["DEPLOYING", "DEPLOYED", "DEACTIVATING", "DEACTIVATED", "ARCHIVING", "ARCHIVED", "UNARCHIVING", "DELETING", "TERMINATED", "FAILED", "UPLOADING", "BUILDING"] | None = field(default=None)


@dataclass(kw_only=True)
class SandboxError:
    error: str | PlatformError


@dataclass(kw_only=True)
class SandboxHealth:
    arch: str
    build_time: str = field(metadata={"json": "buildTime"})
    git_commit: str = field(metadata={"json": "gitCommit"})
    go_version: str = field(metadata={"json": "goVersion"})
    #: of the image; absent without one, and once its process is over
    health_check: SandboxHealthCheck | None = field(default=None, metadata={"json": "healthCheck"})
    last_upgrade: SandboxUpgrade = field(metadata={"json": "lastUpgrade"})
    last_wake: str | None = field(default=None, metadata={"json": "lastWake"})
    os: str
    started_at: str = field(metadata={"json": "startedAt"})
    status: str
    upgrade_count: int = field(metadata={"json": "upgradeCount"})
    uptime: str
    uptime_seconds: float = field(metadata={"json": "uptimeSeconds"})
    version: str
    wake_count: int = field(metadata={"json": "wakeCount"})


@dataclass(kw_only=True)
class SandboxHealthCheck:
    at: str | None = field(default=None)
    #: of the last check; -1 if it did not end by itself
    exit_code: int = field(metadata={"json": "exitCode"})
    #: in a row
    failures: int
    #: the end of what the last check wrote
    output: str
    status: Literal["starting", "healthy", "unhealthy"]


@dataclass(kw_only=True)
class SandboxNode:
    node: str


@dataclass(kw_only=True)
class SandboxRequest:
    metadata: MetadataRequest | None = field(default=None)
    spec: SandboxSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class SandboxSpec:
    #: false: it accepts no connections
    enabled: bool | None = field(default=None)
    lifecycle: Lifecycle | None = field(default=None)
    network: Network | None = field(default=None)
    region: str | None = field(default=None)
    runtime: Runtime
    volumes: list[VolumeAttachment] | None = field(default=None)
    vpc: str | None = field(default=None)


@dataclass(kw_only=True)
class SandboxSpecRequest:
    #: false: it accepts no connections
    enabled: bool | None = field(default=None)
    lifecycle: Lifecycle | None = field(default=None)
    network: NetworkRequest | None = field(default=None)
    region: str | None = field(default=None)
    runtime: Runtime | None = field(default=None)
    volumes: list[VolumeAttachmentRequest] | None = field(default=None)
    vpc: str | None = field(default=None)


@dataclass(kw_only=True)
class SandboxUpgrade:
    last_attempt: str | None = field(default=None, metadata={"json": "lastAttempt"})
    status: str
    step: str
    version: str


@dataclass(kw_only=True)
class SandboxUsage:
    #: when the counters of wakes, sleeps and processor time began
    counted_since: str = field(metadata={"json": "countedSince"})
    disk: DiskUsage
    last_wake: Trace | None = field(default=None, metadata={"json": "lastWake"})
    measured_at: str = field(metadata={"json": "measuredAt"})
    memory: MemoryUsage
    name: str
    network: NetworkUsage
    processor: ProcessorUsage
    #: pauses
    sleeps: int
    state: Literal["RUNNING", "STANDBY"]
    status: Literal["DEPLOYING", "DEPLOYED", "DEACTIVATING", "DEACTIVATED", "ARCHIVING", "ARCHIVED", "UNARCHIVING", "DELETING", "TERMINATED", "FAILED", "UPLOADING", "BUILDING"]
    #: awake, paused, saved, swapped or disk; empty without a machine
    tier: str
    wakes: WakeUsage


@dataclass(kw_only=True)
class Schedule:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    id: str
    input: ScheduleInput
    max_executions: int | None = field(default=None, metadata={"json": "maxExecutions"})
    sandbox: str | None = field(default=None)
    type: Literal["cron", "at", "sleep"]
    #: five fields of cron in UTC, a moment, or a duration from now: by the type
    value: str


@dataclass(kw_only=True)
class ScheduleInput:
    command: str
    env: dict[str, str] | None = field(default=None)
    keep_alive: bool | None = field(default=None, metadata={"json": "keepAlive"})
    name: str | None = field(default=None)
    #: in seconds; 0 is none
    timeout: int | None = field(default=None)
    working_dir: str | None = field(default=None, metadata={"json": "workingDir"})


@dataclass(kw_only=True)
class ScheduleInputRequest:
    command: str | None = field(default=None)
    env: dict[str, str] | None = field(default=None)
    keep_alive: bool | None = field(default=None, metadata={"json": "keepAlive"})
    name: str | None = field(default=None)
    #: in seconds; 0 is none
    timeout: int | None = field(default=None)
    working_dir: str | None = field(default=None, metadata={"json": "workingDir"})


@dataclass(kw_only=True)
class ScheduleMetrics:
    executions: int
    executions_by_status: dict[str, int] = field(metadata={"json": "executionsByStatus"})
    sandboxes: int
    schedules: int
    since: str
    until: str


@dataclass(kw_only=True)
class ScheduleRequest:
    id: str | None = field(default=None)
    input: ScheduleInputRequest | None = field(default=None)
    max_executions: int | None = field(default=None, metadata={"json": "maxExecutions"})
    type: Literal["cron", "at", "sleep"] | None = field(default=None)
    #: five fields of cron in UTC, a moment, or a duration from now: by the type
    value: str | None = field(default=None)


@dataclass(kw_only=True)
class Secret:
    #: masked in answers: sent back so, a value is unchanged
    data: dict[str, str]
    metadata: Metadata


@dataclass(kw_only=True)
class SecretRequest:
    #: masked in answers: sent back so, a value is unchanged
    data: dict[str, str] | None = field(default=None)
    metadata: MetadataRequest | None = field(default=None)


@dataclass(kw_only=True)
class ServiceAccount:
    client_id: str
    client_secret: str | None = field(default=None)
    created_at: str | None = field(default=None)
    description: str
    name: str
    scopes: list[str] | None = field(default=None)
    updated_at: str | None = field(default=None)


@dataclass(kw_only=True)
class Settled:
    lost: list[NodeLoss]
    total: int


@dataclass(kw_only=True)
class ShareRequest:
    #: of a domain also account: all
    target_workspace: str = field(metadata={"json": "targetWorkspace"})


@dataclass(kw_only=True)
class Snapshot:
    bytes: int | None = field(default=None)
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    id: str
    message: str | None = field(default=None)
    name: str
    sandbox_name: str = field(metadata={"json": "sandboxName"})
    source: SnapshotSource
    spec: SnapshotSpec
    status: Literal["pending", "ready", "failed"]
    workspace: str


@dataclass(kw_only=True)
class SnapshotRequest:
    name: str | None = field(default=None)
    source: SnapshotSourceRequest | None = field(default=None)


@dataclass(kw_only=True)
class SnapshotSource:
    deleted: bool
    kind: Literal["sandbox"]
    name: str


@dataclass(kw_only=True)
class SnapshotSourceRequest:
    kind: Literal["sandbox"] | None = field(default=None)
    name: str | None = field(default=None)


@dataclass(kw_only=True)
class SnapshotSpec:
    generation: str
    image: str
    memory: int
    ports: list[Port] | None = field(default=None)
    region: str
    storage: int | None = field(default=None)
    volumes: list[VolumeAttachment] | None = field(default=None)


@dataclass(kw_only=True)
class Subdirectory:
    name: str
    path: str


@dataclass(kw_only=True)
class Success:
    message: str
    path: str


@dataclass(kw_only=True)
class TerminalFrame:
    #: of exit: the exit code, -1 after a signal
    code: int | None = field(default=None)
    cols: int | None = field(default=None)
    #: of start: text for a shell; without it the shell itself runs
    command: str | None = field(default=None)
    #: what was typed, what is shown, the error, or the name of a signal such as TERM
    data: str | None = field(default=None)
    #: of start: further variables of the command
    env: dict[str, str] | None = field(default=None)
    rows: int | None = field(default=None)
    #: of exit: the number of the signal that ended it, or 0
    signal: int | None = field(default=None)
    type: Literal["start", "input", "resize", "signal", "output", "error", "exit"]


@dataclass(kw_only=True)
class TextMatch:
    #: of the first occurrence, in bytes from 1
    column: int
    context: str | None = field(default=None)
    #: from 1
    line: int
    path: str
    #: the line, at most 2 KiB of it
    text: str


@dataclass(kw_only=True)
class TextMatches:
    incomplete: bool | None = field(default=None)
    matches: list[TextMatch]
    query: str
    total: int


@dataclass(kw_only=True)
class Ticket:
    expires_at: str = field(metadata={"json": "expiresAt"})
    ticket: str
    url: str


@dataclass(kw_only=True)
class TokenAnswer:
    access_token: str
    expires_in: int
    refresh_token: str | None = field(default=None)
    scope: str
    token_type: str


@dataclass(kw_only=True)
class Trace:
    error: str | None = field(default=None)
    from_: str = field(metadata={"json": "from"})
    kind: str
    stages: list[TraceStage]
    started_at: str = field(metadata={"json": "startedAt"})
    status: str
    waited_us: int = field(metadata={"json": "waitedUs"})


@dataclass(kw_only=True)
class TraceStage:
    name: str
    start_us: int = field(metadata={"json": "startUs"})
    took_us: int = field(metadata={"json": "tookUs"})
    within: str | None = field(default=None)


@dataclass(kw_only=True)
class TreeRequest:
    #: what is in each file, by its path below the directory
    files: dict[str, str | None]


@dataclass(kw_only=True)
class TunnelRequest:
    #: base64 of the JSON of a tunnel
    config: str


@dataclass(kw_only=True)
class Unarchive:
    restored_bytes: int = field(metadata={"json": "restoredBytes"})
    state: Literal["extracting", "succeeded", "failed"]
    total_bytes: int = field(metadata={"json": "totalBytes"})


@dataclass(kw_only=True)
class UnmountedDrive:
    message: str
    mount_path: str = field(metadata={"json": "mountPath"})
    success: bool


@dataclass(kw_only=True)
class UpgradeRequest:
    base_url: str | None = field(default=None, metadata={"json": "baseUrl"})
    version: str | None = field(default=None)


@dataclass(kw_only=True)
class UpgradeResponse:
    base_url: str = field(metadata={"json": "baseUrl"})
    message: str
    version: str


@dataclass(kw_only=True)
class Upload:
    initiated_at: str = field(metadata={"json": "initiatedAt"})
    parts: dict[str, UploadPart]
    path: str
    #: the bits of the permissions, as a number
    permissions: int
    upload_id: str = field(metadata={"json": "uploadId"})


@dataclass(kw_only=True)
class UploadCompleteRequest:
    parts: list[UploadPartRequest]


@dataclass(kw_only=True)
class UploadList:
    uploads: list[Upload]


@dataclass(kw_only=True)
class UploadPart:
    #: MD5 of the part, hexadecimal
    etag: str
    part_number: int = field(metadata={"json": "partNumber"})
    #: bytes
    size: int
    uploaded_at: str | None = field(default=None, metadata={"json": "uploadedAt"})


@dataclass(kw_only=True)
class UploadPartRequest:
    #: MD5 of the part, hexadecimal
    etag: str | None = field(default=None)
    part_number: int = field(metadata={"json": "partNumber"})
    #: bytes
    size: int | None = field(default=None)


@dataclass(kw_only=True)
class UploadParts:
    parts: list[UploadPart]
    upload_id: str = field(metadata={"json": "uploadId"})


@dataclass(kw_only=True)
class UploadRequest:
    #: octal, such as 0644
    permissions: str | None = field(default=None)


@dataclass(kw_only=True)
class UploadStarted:
    path: str
    upload_id: str = field(metadata={"json": "uploadId"})


@dataclass(kw_only=True)
class Uploaded:
    message: str
    version: str


@dataclass(kw_only=True)
class User:
    accepted: bool
    email: str
    email_verified: bool
    family_name: str | None = field(default=None)
    given_name: str | None = field(default=None)
    role: Literal["admin", "member"] | None = field(default=None)
    sub: str
    #: may create workspaces; operators always may
    workspace_creator: bool | None = field(default=None, metadata={"json": "workspaceCreator"})


@dataclass(kw_only=True)
class VersionDeleted:
    message: str
    template: VolumeTemplate


@dataclass(kw_only=True)
class Volume:
    events: list[Event] | None = field(default=None)
    metadata: Metadata
    spec: VolumeSpec
    state: VolumeState
    status: str | None = field(default=None)


@dataclass(kw_only=True)
class VolumeAttachment:
    mount_path: str = field(metadata={"json": "mountPath"})
    name: str
    read_only: bool = field(metadata={"json": "readOnly"})
    #: in MiB
    size_mb: int | None = field(default=None, metadata={"json": "sizeMb"})
    type: Literal["persistent", "ephemeral"] | None = field(default=None)


@dataclass(kw_only=True)
class VolumeAttachmentRequest:
    mount_path: str = field(metadata={"json": "mountPath"})
    name: str
    read_only: bool | None = field(default=None, metadata={"json": "readOnly"})
    #: in MiB
    size_mb: int | None = field(default=None, metadata={"json": "sizeMb"})
    type: Literal["persistent", "ephemeral"] | None = field(default=None)


@dataclass(kw_only=True)
class VolumeRequest:
    metadata: MetadataRequest | None = field(default=None)
    spec: VolumeSpec | None = field(default=None)


@dataclass(kw_only=True)
class VolumeSpec:
    region: str | None = field(default=None)
    #: in MiB
    size: int | None = field(default=None)
    #: name or name:version
    template: str | None = field(default=None)


@dataclass(kw_only=True)
class VolumeState:
    attached_to: str = field(metadata={"json": "attachedTo"})


@dataclass(kw_only=True)
class VolumeTemplate:
    metadata: Metadata
    spec: VolumeTemplateSpec
    state: VolumeTemplateState
    versions: list[VolumeTemplateVersion]


@dataclass(kw_only=True)
class VolumeTemplateRequest:
    metadata: MetadataRequest | None = field(default=None)
    spec: VolumeTemplateSpecRequest | None = field(default=None)


@dataclass(kw_only=True)
class VolumeTemplateSpec:
    #: in MiB
    default_size: int | None = field(default=None, metadata={"json": "defaultSize"})
    description: str


@dataclass(kw_only=True)
class VolumeTemplateSpecRequest:
    #: in MiB
    default_size: int | None = field(default=None, metadata={"json": "defaultSize"})
    description: str | None = field(default=None)


@dataclass(kw_only=True)
class VolumeTemplateState:
    last_version_uploaded_at: str | None = field(default=None, metadata={"json": "lastVersionUploadedAt"})
    latest_version: str | None = field(default=None, metadata={"json": "latestVersion"})
    status: Literal["created", "ready"]
    version_count: int = field(metadata={"json": "versionCount"})


@dataclass(kw_only=True)
class VolumeTemplateVersion:
    bucket: str
    content_size: int = field(metadata={"json": "contentSize"})
    name: str
    region: str
    status: Literal["CREATED", "READY", "FAILED"]
    template_name: str = field(metadata={"json": "templateName"})
    version_id: str = field(metadata={"json": "versionId"})
    workspace: str


@dataclass(kw_only=True)
class WakeUsage:
    count: int
    failures: int
    last_us: int = field(metadata={"json": "lastUs"})
    p50_us: int = field(metadata={"json": "p50Us"})
    p99_us: int = field(metadata={"json": "p99Us"})


@dataclass(kw_only=True)
class Welcome:
    description: str
    documentation: str
    message: str


@dataclass(kw_only=True)
class Workspace:
    created_at: str | None = field(default=None, metadata={"json": "createdAt"})
    created_by: str | None = field(default=None, metadata={"json": "createdBy"})
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    id: str
    labels: dict[str, str] | None = field(default=None)
    name: str
    region: str | None = field(default=None)
    resource_counts: dict[str, int] | None = field(default=None, metadata={"json": "resourceCounts"})
    status: str | None = field(default=None)
    updated_at: str | None = field(default=None, metadata={"json": "updatedAt"})
    updated_by: str | None = field(default=None, metadata={"json": "updatedBy"})


@dataclass(kw_only=True)
class WorkspaceRequest:
    display_name: str | None = field(default=None, metadata={"json": "displayName"})
    labels: dict[str, str] | None = field(default=None)
    name: str | None = field(default=None)
    region: str | None = field(default=None)
