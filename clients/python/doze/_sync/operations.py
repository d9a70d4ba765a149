# Written by internal/python. Do not change it: run make gen.
"""Every call of the APIs."""

from __future__ import annotations

from typing import Any, Iterator, Literal, Mapping

from .. import _codec, models
from .._codec import Page
from .transport import Transport


class ControlOperations:
    "The calls of the control API."

    def __init__(self, transport: Transport, base: str) -> None:
        self._transport = transport
        self._base = base

    def delete_api_keys_by_id(self, id: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Delete an API key. Open requests that came with it end. Needs the scope apiKey:write."""
        return self._transport.call("DELETE", f"{self._base}/api_keys/{_codec.segment(id)}", decode=_codec.anything, timeout=timeout)

    def delete_builds_by_build(self, build: str, *, timeout: float | None = None) -> models.Build:
        """Cancel a build. It is 409 for a build that has ended. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/builds/{_codec.segment(build)}", decode=_codec.model(models.Build), timeout=timeout)

    def delete_customdomains_by_domain(self, domain: str, *, timeout: float | None = None) -> models.CustomDomain:
        """Delete a custom domain. It is 409 while a preview uses the domain, or while it is shared. Needs the scope customdomains:delete."""
        return self._transport.call("DELETE", f"{self._base}/customdomains/{_codec.segment(domain)}", decode=_codec.model(models.CustomDomain), timeout=timeout)

    def delete_customdomains_by_domain_share_by_target(self, domain: str, target: str, *, timeout: float | None = None) -> models.CustomDomain:
        """Stop sharing a custom domain with a workspace. Previews of that workspace on the domain end. Needs the scope customdomains:update."""
        return self._transport.call("DELETE", f"{self._base}/customdomains/{_codec.segment(domain)}/share/{_codec.segment(target)}", decode=_codec.model(models.CustomDomain), timeout=timeout)

    def delete_drives_by_drive(self, drive: str, *, timeout: float | None = None) -> models.Deleted:
        """Delete a drive. It is 409 while a sandbox has the drive mounted. Needs the scope volumes:delete."""
        return self._transport.call("DELETE", f"{self._base}/drives/{_codec.segment(drive)}", decode=_codec.model(models.Deleted), timeout=timeout)

    def delete_images(self, *, timeout: float | None = None) -> models.Cleaned:
        """Delete the image tags without a sandbox. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/images", decode=_codec.model(models.Cleaned), timeout=timeout)

    def delete_images_by_type_by_image(self, type: str, image: str, *, timeout: float | None = None) -> models.Image:
        """Delete an image. It is 400 while a sandbox has the image. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}", decode=_codec.model(models.Image), timeout=timeout)

    def delete_images_by_type_by_image_share_by_target(self, type: str, image: str, target: str, *, timeout: float | None = None) -> models.Image:
        """Stop sharing an image with a workspace. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/share/{_codec.segment(target)}", decode=_codec.model(models.Image), timeout=timeout)

    def delete_images_by_type_by_image_tags_by_tag(self, type: str, image: str, tag: str, *, timeout: float | None = None) -> models.Image:
        """Delete a tag of an image. It is 400 while a sandbox has the image under this tag. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/tags/{_codec.segment(tag)}", decode=_codec.model(models.Image), timeout=timeout)

    def delete_oauth_clients_by_client(self, client: str, *, timeout: float | None = None) -> models.OAuthClient:
        """Remove a program that users log in with. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/oauth/clients/{_codec.segment(client)}", decode=_codec.model(models.OAuthClient), timeout=timeout)

    def delete_platform_nodes_by_node(self, node: str, *, force: bool | None = None, timeout: float | None = None) -> models.RemovedNode:
        """Remove a node. It is 409 while the node has a lease, or has what the bucket does not have. With force, that is lost, and the answer lists it. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/platform/nodes/{_codec.segment(node)}", params=_codec.query(**{"force": force}), decode=_codec.model(models.RemovedNode), timeout=timeout)

    def delete_policies_by_policy(self, policy: str, *, timeout: float | None = None) -> models.Policy:
        """Delete a policy. Needs the scope policies:delete."""
        return self._transport.call("DELETE", f"{self._base}/policies/{_codec.segment(policy)}", decode=_codec.model(models.Policy), timeout=timeout)

    def delete_sandboxes_by_name(self, name: str, *, timeout: float | None = None) -> models.Sandbox:
        """Delete a sandbox. Its name is free at once. Its record stays until spec.lifecycle.terminatedRetention is over. Needs the scope sandboxes:delete."""
        return self._transport.call("DELETE", f"{self._base}/sandboxes/{_codec.segment(name)}", decode=_codec.model(models.Sandbox), timeout=timeout)

    def delete_sandboxes_by_name_previews_by_preview(self, name: str, preview: str, *, timeout: float | None = None) -> models.Preview:
        """Delete a preview. Its open connections end. Needs the scope sandboxes:update."""
        return self._transport.call("DELETE", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}", decode=_codec.model(models.Preview), timeout=timeout)

    def delete_sandboxes_by_name_previews_by_preview_tokens_by_token(self, name: str, preview: str, token: str, *, timeout: float | None = None) -> dict[str, str]:
        """Delete a token of a preview. Connections that were opened with it end. Needs the scope sandboxes:control."""
        return self._transport.call("DELETE", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}/tokens/{_codec.segment(token)}", decode=_codec.mapping(_codec.anything), timeout=timeout)

    def delete_sandboxes_by_name_schedules_by_schedule(self, name: str, schedule: str, *, timeout: float | None = None) -> models.Schedule:
        """Delete a schedule. Needs the scope sandboxes:update."""
        return self._transport.call("DELETE", f"{self._base}/sandboxes/{_codec.segment(name)}/schedules/{_codec.segment(schedule)}", decode=_codec.model(models.Schedule), timeout=timeout)

    def delete_sandboxes_by_name_snapshots_by_snapshot(self, name: str, snapshot: str, *, timeout: float | None = None) -> None:
        """Delete a snapshot of a sandbox. Its forks go on. Needs the scope sandboxes:delete."""
        return self._transport.call("DELETE", f"{self._base}/sandboxes/{_codec.segment(name)}/snapshots/{_codec.segment(snapshot)}", decode=_codec.nothing, timeout=timeout)

    def delete_secrets_by_secret(self, secret: str, *, timeout: float | None = None) -> models.Secret:
        """Delete a secret. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/secrets/{_codec.segment(secret)}", decode=_codec.model(models.Secret), timeout=timeout)

    def delete_service_accounts_by_account(self, account: str, *, timeout: float | None = None) -> models.ServiceAccount:
        """Delete a service account. Its keys and tokens are void at once. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/service_accounts/{_codec.segment(account)}", decode=_codec.model(models.ServiceAccount), timeout=timeout)

    def delete_service_accounts_by_account_api_keys_by_key(self, account: str, key: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Delete a key of a service account. Open requests that came with it end. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/service_accounts/{_codec.segment(account)}/api_keys/{_codec.segment(key)}", decode=_codec.anything, timeout=timeout)

    def delete_snapshots_by_snapshot(self, snapshot: str, *, timeout: float | None = None) -> None:
        """Delete a snapshot. Its forks go on. Needs the scope sandboxes:delete."""
        return self._transport.call("DELETE", f"{self._base}/snapshots/{_codec.segment(snapshot)}", decode=_codec.nothing, timeout=timeout)

    def delete_users_by_user(self, user: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Remove a member or an open invitation. It is 409 for the last admin. Needs the scope workspaces:remove."""
        return self._transport.call("DELETE", f"{self._base}/users/{_codec.segment(user)}", decode=_codec.anything, timeout=timeout)

    def delete_volume_templates_by_template(self, template: str, *, timeout: float | None = None) -> models.VolumeTemplate:
        """Delete a volume template. Volumes that were made of it stay as they are. Needs the scope volumeTemplates:delete."""
        return self._transport.call("DELETE", f"{self._base}/volume_templates/{_codec.segment(template)}", decode=_codec.model(models.VolumeTemplate), timeout=timeout)

    def delete_volume_templates_by_template_versions_by_version(self, template: str, version: str, *, timeout: float | None = None) -> models.VersionDeleted:
        """Delete a version of a volume template. It is 400 for the only version. Needs the scope volumeTemplates:delete."""
        return self._transport.call("DELETE", f"{self._base}/volume_templates/{_codec.segment(template)}/versions/{_codec.segment(version)}", decode=_codec.model(models.VersionDeleted), timeout=timeout)

    def delete_volumes_by_volume(self, volume: str, *, timeout: float | None = None) -> models.Volume:
        """Delete a volume. It is 409 while a sandbox has the volume. Needs the scope volumes:delete."""
        return self._transport.call("DELETE", f"{self._base}/volumes/{_codec.segment(volume)}", decode=_codec.model(models.Volume), timeout=timeout)

    def delete_vpcs_by_vpc(self, vpc: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Delete a VPC. It is 409 while the VPC has an egress gateway or a sandbox, and always for the VPC default. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/vpcs/{_codec.segment(vpc)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def delete_vpcs_by_vpc_egressgateways_by_gateway(self, vpc: str, gateway: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Delete an egress gateway. It is 409 while the egress gateway has an address. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def delete_vpcs_by_vpc_egressgateways_by_gateway_ips_by_ip(self, vpc: str, gateway: str, ip: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Take an address from an egress gateway. It is 409 for the last address of an egress gateway that sandboxes use. Needs the scope admin."""
        return self._transport.call("DELETE", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}/ips/{_codec.segment(ip)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def delete_workspaces_by_workspace(self, workspace: str, *, timeout: float | None = None) -> models.Workspace:
        """Delete a workspace. It is 409 while the workspace has sandboxes, snapshots, volumes, volume templates or drives. Needs the scope workspaces:delete."""
        return self._transport.call("DELETE", f"{self._base}/workspaces/{_codec.segment(workspace)}", decode=_codec.model(models.Workspace), timeout=timeout)

    def delete_workspaces_by_workspace_leave(self, workspace: str, *, timeout: float | None = None) -> models.Workspace:
        """Leave a workspace. It is 409 for the last admin. Needs the scope workspaces:leave."""
        return self._transport.call("DELETE", f"{self._base}/workspaces/{_codec.segment(workspace)}/leave", decode=_codec.model(models.Workspace), timeout=timeout)

    def get_api_keys(self, *, timeout: float | None = None) -> list[models.APIKey]:
        """List API keys. The answer has no key itself. A caller with the scope admin gets all keys of the workspace. Needs the scope apiKey:list."""
        return self._transport.call("GET", f"{self._base}/api_keys", decode=_codec.items(_codec.model(models.APIKey)), timeout=timeout)

    def get_audit(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, since: str | None = None, until: str | None = None, actor: str | None = None, action: str | None = None, object: str | None = None, source: str | None = None, outcome: Literal["begun", "done", "failed", "denied"] | None = None, platform: bool | None = None, timeout: float | None = None) -> Page[models.AuditLine]:
        """List the lines of the audit log. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/audit", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "since": since, "until": until, "actor": actor, "action": action, "object": object, "source": source, "outcome": outcome, "platform": platform}), decode=_codec.page(_codec.model(models.AuditLine)), timeout=timeout)

    def get_audit_export(self, *, since: str | None = None, until: str | None = None, actor: str | None = None, action: str | None = None, object: str | None = None, source: str | None = None, outcome: Literal["begun", "done", "failed", "denied"] | None = None, platform: bool | None = None) -> Iterator[str]:
        """Export the audit log. The oldest line is first. Needs the scope admin."""
        return self._transport.lines("GET", f"{self._base}/audit/export", params=_codec.query(**{"since": since, "until": until, "actor": actor, "action": action, "object": object, "source": source, "outcome": outcome, "platform": platform}))

    def get_builds(self, *, timeout: float | None = None) -> list[models.Build]:
        """List the builds of the workspace. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/builds", decode=_codec.items(_codec.model(models.Build)), timeout=timeout)

    def get_builds_by_build(self, build: str, *, timeout: float | None = None) -> models.Build:
        """Read a build. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/builds/{_codec.segment(build)}", decode=_codec.model(models.Build), timeout=timeout)

    def get_builds_by_build_logs(self, build: str, *, follow: bool | None = None) -> Iterator[str]:
        """Read the log of a build. The last line has the status of a build that has ended. Needs the scope admin."""
        return self._transport.lines("GET", f"{self._base}/builds/{_codec.segment(build)}/logs", params=_codec.query(**{"follow": follow}))

    def get_configuration(self, *, timeout: float | None = None) -> models.Configuration:
        """Read the configuration of the platform. Needs the scope configurations:list."""
        return self._transport.call("GET", f"{self._base}/configuration", decode=_codec.model(models.Configuration), timeout=timeout)

    def get_customdomains(self, *, labels: list[str] | None = None, timeout: float | None = None) -> list[models.CustomDomain]:
        """List custom domains. Needs the scope customdomains:list."""
        return self._transport.call("GET", f"{self._base}/customdomains", params=_codec.query(**{"labels": labels}), decode=_codec.items(_codec.model(models.CustomDomain)), timeout=timeout)

    def get_customdomains_by_domain(self, domain: str, *, timeout: float | None = None) -> models.CustomDomain:
        """Read a custom domain. Needs the scope customdomains:get."""
        return self._transport.call("GET", f"{self._base}/customdomains/{_codec.segment(domain)}", decode=_codec.model(models.CustomDomain), timeout=timeout)

    def get_customdomains_by_domain_share(self, domain: str, *, timeout: float | None = None) -> list[models.DomainShare]:
        """List who may use a custom domain. Needs the scope customdomains:get."""
        return self._transport.call("GET", f"{self._base}/customdomains/{_codec.segment(domain)}/share", decode=_codec.items(_codec.model(models.DomainShare)), timeout=timeout)

    def get_drives(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, labels: list[str] | None = None, status: str | None = None, external_id: str | None = None, timeout: float | None = None) -> Page[models.Drive]:
        """List drives. Needs the scope volumes:list."""
        return self._transport.call("GET", f"{self._base}/drives", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "labels": labels, "status": status, "externalId": external_id}), decode=_codec.page(_codec.model(models.Drive)), timeout=timeout)

    def get_drives_by_drive(self, drive: str, *, timeout: float | None = None) -> models.Drive:
        """Read a drive. Needs the scope volumes:get."""
        return self._transport.call("GET", f"{self._base}/drives/{_codec.segment(drive)}", decode=_codec.model(models.Drive), timeout=timeout)

    def get_drives_by_external_id_by_external_id(self, external_id: str, *, timeout: float | None = None) -> models.Drive:
        """Read the newest drive with an external id. Needs the scope volumes:get."""
        return self._transport.call("GET", f"{self._base}/drives/by-external-id/{_codec.segment(external_id)}", decode=_codec.model(models.Drive), timeout=timeout)

    def get_drives_jwks_json(self, *, timeout: float | None = None) -> Any:
        """Read the keys that verify drive tokens. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/drives/jwks.json", decode=_codec.anything, timeout=timeout)

    def get_egressgateways(self, *, timeout: float | None = None) -> list[models.NetworkResource]:
        """List the egress gateways of the workspace. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/egressgateways", decode=_codec.items(_codec.model(models.NetworkResource)), timeout=timeout)

    def get_egressgateways_usage(self, *, timeout: float | None = None) -> dict[str, list[str]]:
        """List the sandboxes by their egress gateway. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/egressgateways/usage", decode=_codec.mapping(_codec.items(_codec.anything)), timeout=timeout)

    def get_egressips(self, *, timeout: float | None = None) -> list[models.NetworkResource]:
        """List the egress addresses of the workspace. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/egressips", decode=_codec.items(_codec.model(models.NetworkResource)), timeout=timeout)

    def get_features(self, *, timeout: float | None = None) -> dict[str, dict[str, bool]]:
        """List the features that are on. There are none. Needs the scope configurations:list."""
        return self._transport.call("GET", f"{self._base}/features", decode=_codec.mapping(_codec.mapping(_codec.anything)), timeout=timeout)

    def get_features_by_feature(self, feature: str, *, timeout: float | None = None) -> models.Feature:
        """Read a feature. Every feature is off, whatever its name. Needs the scope configurations:list."""
        return self._transport.call("GET", f"{self._base}/features/{_codec.segment(feature)}", decode=_codec.model(models.Feature), timeout=timeout)

    def get_feed(self, *, follow: bool | None = None) -> Iterator[str]:
        """Follow the sandboxes of a workspace. It wakes nothing. First come messages named state with all sandboxes, and one named complete. With follow=true the answer goes on with messages named change, each with the sandboxes that differ and the names of those that are gone. Send the id of the last message as the header Last-Event-ID to go on after a cut. If that is too long ago, the answer begins with state again. Needs the scope sandboxes:list."""
        return self._transport.lines("GET", f"{self._base}/feed", params=_codec.query(**{"follow": follow}))

    def get_health(self, *, timeout: float | None = None) -> dict[str, str]:
        """Say how the platform is. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/health", decode=_codec.mapping(_codec.anything), timeout=timeout)

    def get_images(self, *, timeout: float | None = None) -> list[models.Image]:
        """List the images of the workspace. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/images", decode=_codec.items(_codec.model(models.Image)), timeout=timeout)

    def get_images_by_type_by_image(self, type: str, image: str, *, timeout: float | None = None) -> models.Image:
        """Read an image. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}", decode=_codec.model(models.Image), timeout=timeout)

    def get_images_by_type_by_image_archive(self, type: str, image: str, *, timeout: float | None = None) -> bytes:
        """Download an image. The answer is an OCI layout with one layer, which docker loads too. Write the tag behind the name, as in app:1.0; it is latest by default. Needs the scope admin."""
        return (self._transport.send("GET", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/archive", timeout=timeout)).content

    def get_images_by_type_by_image_share(self, type: str, image: str, *, timeout: float | None = None) -> list[models.ImageShare]:
        """List who may use an image. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/share", decode=_codec.items(_codec.model(models.ImageShare)), timeout=timeout)

    def get_invitations(self, *, timeout: float | None = None) -> list[models.Invitation]:
        """List the open invitations of the workspace. Needs the scope invitations:list."""
        return self._transport.call("GET", f"{self._base}/invitations", decode=_codec.items(_codec.model(models.Invitation)), timeout=timeout)

    def get_locations(self, *, timeout: float | None = None) -> list[models.Location]:
        """List the regions. Needs the scope locations:list."""
        return self._transport.call("GET", f"{self._base}/locations", decode=_codec.items(_codec.model(models.Location)), timeout=timeout)

    def get_login_verify(self, *, user_code: str | None = None, timeout: float | None = None) -> bytes:
        """Show the page that approves a device. Needs no credential."""
        return (self._transport.send("GET", f"{self._base}/login/verify", params=_codec.query(**{"user_code": user_code}), timeout=timeout)).content

    def get_oauth_authorize(self, *, response_type: str | None = None, client_id: str | None = None, redirect_uri: str | None = None, scope: str | None = None, state: str | None = None, code_challenge: str | None = None, code_challenge_method: str | None = None, timeout: float | None = None) -> bytes:
        """Show the page that asks for consent. Needs no credential."""
        return (self._transport.send("GET", f"{self._base}/oauth/authorize", params=_codec.query(**{"response_type": response_type, "client_id": client_id, "redirect_uri": redirect_uri, "scope": scope, "state": state, "code_challenge": code_challenge, "code_challenge_method": code_challenge_method}), timeout=timeout)).content

    def get_oauth_clients(self, *, timeout: float | None = None) -> list[models.OAuthClient]:
        """List the programs that users log in with. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/oauth/clients", decode=_codec.items(_codec.model(models.OAuthClient)), timeout=timeout)

    def get_oauth_jwks(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Read the keys that verify access tokens. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/oauth/jwks", decode=_codec.mapping(_codec.anything), timeout=timeout)

    def get_observability_logs(self, *, start: str | None = None, end: str | None = None, resource_type: str | None = None, workload_ids: str | None = None, type: str | None = None, severity: str | None = None, search: str | None = None, process: str | None = None, order: Literal["desc", "asc"] | None = None, limit: int | None = None, cursor: str | None = None, timeout: float | None = None) -> dict[str, models.Log]:
        """Read events and output of sandboxes. It wakes nothing. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/observability/logs", params=_codec.query(**{"start": start, "end": end, "resourceType": resource_type, "workloadIds": workload_ids, "type": type, "severity": severity, "search": search, "process": process, "order": order, "limit": limit, "cursor": cursor}), decode=_codec.mapping(_codec.model(models.Log)), timeout=timeout)

    def get_openapi_json(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Describe this API. The answer is this document. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/openapi.json", decode=_codec.anything, timeout=timeout)

    def get_pending_image_shares(self, *, direction: Literal["incoming", "outgoing"] | None = None, timeout: float | None = None) -> list[models.ImageShare]:
        """List the shares that an answer. There are none: a share counts at once. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/pending-image-shares", params=_codec.query(**{"direction": direction}), decode=_codec.items(_codec.model(models.ImageShare)), timeout=timeout)

    def get_platform_doctor(self, *, timeout: float | None = None) -> models.Checkup:
        """Read what is amiss with the host. Only operators get it. It is what `dozed doctor` finds on the host of this process, and what dozed warned of at its start. The platform looks when somebody asks, and at most once a minute. It tries no rules of the packet filter, as `dozed doctor` does. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/platform/doctor", decode=_codec.model(models.Checkup), timeout=timeout)

    def get_platform_history(self, *, series: str | None = None, from_: str | None = None, to: str | None = None, step: str | None = None, timeout: float | None = None) -> models.History:
        """Read what the platform did and took. Only operators get it. The last 24 hours are in steps of 10 seconds or more, and 30 days in steps of 10 minutes or more. The parameter series has names, separated by commas. A value of null was not recorded. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/platform/history", params=_codec.query(**{"series": series, "from": from_, "to": to, "step": step}), decode=_codec.model(models.History), timeout=timeout)

    def get_platform_nodes(self, *, timeout: float | None = None) -> list[models.Node]:
        """List nodes. Only operators get it. A platform of one process has no list of nodes. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/platform/nodes", decode=_codec.items(_codec.model(models.Node)), timeout=timeout)

    def get_platform_nodes_by_node_sandboxes(self, node: str, *, timeout: float | None = None) -> models.NodeSandboxes:
        """List sandboxes of a node. Those of all workspaces that live, with a memory or an archive. Those come first that were used last. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/platform/nodes/{_codec.segment(node)}/sandboxes", decode=_codec.model(models.NodeSandboxes), timeout=timeout)

    def get_platform_users(self, *, timeout: float | None = None) -> list[models.User]:
        """List all users of the platform. Only operators get them. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/platform/users", decode=_codec.items(_codec.model(models.User)), timeout=timeout)

    def get_policies(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, labels: list[str] | None = None, timeout: float | None = None) -> Page[models.Policy]:
        """List policies. Needs the scope policies:list."""
        return self._transport.call("GET", f"{self._base}/policies", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "labels": labels}), decode=_codec.page(_codec.model(models.Policy)), timeout=timeout)

    def get_policies_by_policy(self, policy: str, *, timeout: float | None = None) -> models.Policy:
        """Read a policy. Needs the scope policies:get."""
        return self._transport.call("GET", f"{self._base}/policies/{_codec.segment(policy)}", decode=_codec.model(models.Policy), timeout=timeout)

    def get_policies_by_policy_usages(self, policy: str, *, timeout: float | None = None) -> models.PolicyUsages:
        """List what uses a policy. Nothing does: the lists are empty. Needs the scope policies:get."""
        return self._transport.call("GET", f"{self._base}/policies/{_codec.segment(policy)}/usages", decode=_codec.model(models.PolicyUsages), timeout=timeout)

    def get_public_ips(self, *, region: str | None = None, timeout: float | None = None) -> dict[str, models.Addresses]:
        """List the regions with their addresses. The lists of addresses are empty: the operator knows them. Needs the scope locations:list."""
        return self._transport.call("GET", f"{self._base}/publicIps", params=_codec.query(**{"region": region}), decode=_codec.mapping(_codec.model(models.Addresses)), timeout=timeout)

    def get_quotas(self, *, timeout: float | None = None) -> list[models.QuotaStatus]:
        """List the quotas of the present workspace. Needs the scope workspaces:get."""
        return self._transport.call("GET", f"{self._base}/quotas", decode=_codec.items(_codec.model(models.QuotaStatus)), timeout=timeout)

    def get_sandbox_hub(self, *, timeout: float | None = None) -> list[models.HubImage]:
        """List the images of the platform. Needs the scope sandboxhub:list."""
        return self._transport.call("GET", f"{self._base}/sandbox/hub", decode=_codec.items(_codec.model(models.HubImage)), timeout=timeout)

    def get_sandboxes(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, labels: list[str] | None = None, status: str | None = None, external_id: str | None = None, show_terminated: bool | None = None, timeout: float | None = None) -> Page[models.Sandbox]:
        """List sandboxes. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/sandboxes", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "labels": labels, "status": status, "externalId": external_id, "showTerminated": show_terminated}), decode=_codec.page(_codec.model(models.Sandbox)), timeout=timeout)

    def get_sandboxes_by_external_id_by_external_id(self, external_id: str, *, timeout: float | None = None) -> models.Sandbox:
        """Read the newest sandbox with an external id. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/by-external-id/{_codec.segment(external_id)}", decode=_codec.model(models.Sandbox), timeout=timeout)

    def get_sandboxes_by_name(self, name: str, *, show_secrets: bool | None = None, timeout: float | None = None) -> models.Sandbox:
        """Read a sandbox. It wakes nothing. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}", params=_codec.query(**{"show_secrets": show_secrets}), decode=_codec.model(models.Sandbox), timeout=timeout)

    def get_sandboxes_by_name_egress(self, name: str, *, timeout: float | None = None) -> models.EgressSummary:
        """Read where a sandbox connected to. The last destinations, allowed and refused, with the rule that decided. It wakes nothing. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/egress", decode=_codec.model(models.EgressSummary), timeout=timeout)

    def get_sandboxes_by_name_node(self, name: str, *, timeout: float | None = None) -> models.SandboxNode:
        """Get the node of a sandbox. Only operators get it. It is 409 for a sandbox that has no node, such as one that failed. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/node", decode=_codec.model(models.SandboxNode), timeout=timeout)

    def get_sandboxes_by_name_previews(self, name: str, *, timeout: float | None = None) -> list[models.Preview]:
        """List the previews of a sandbox. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/previews", decode=_codec.items(_codec.model(models.Preview)), timeout=timeout)

    def get_sandboxes_by_name_previews_by_preview(self, name: str, preview: str, *, timeout: float | None = None) -> models.Preview:
        """Read a preview. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}", decode=_codec.model(models.Preview), timeout=timeout)

    def get_sandboxes_by_name_previews_by_preview_tokens(self, name: str, preview: str, *, timeout: float | None = None) -> list[models.PreviewToken]:
        """List the tokens of a preview. The answer has the tokens themselves. Needs the scope sandboxes:control."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}/tokens", decode=_codec.items(_codec.model(models.PreviewToken)), timeout=timeout)

    def get_sandboxes_by_name_schedule_executions(self, name: str, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, status: str | None = None, schedule: str | None = None, since: str | None = None, until: str | None = None, timeout: float | None = None) -> Page[models.Execution]:
        """List the executions of schedules of a sandbox. An execution says whether the sandbox took the process, not how the process ended. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/schedule-executions", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "status": status, "schedule": schedule, "since": since, "until": until}), decode=_codec.page(_codec.model(models.Execution)), timeout=timeout)

    def get_sandboxes_by_name_schedules(self, name: str, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, show_secrets: bool | None = None, type: str | None = None, timeout: float | None = None) -> Page[models.Schedule]:
        """List the schedules of a sandbox. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/schedules", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "show_secrets": show_secrets, "type": type}), decode=_codec.page(_codec.model(models.Schedule)), timeout=timeout)

    def get_sandboxes_by_name_schedules_by_schedule(self, name: str, schedule: str, *, show_secrets: bool | None = None, timeout: float | None = None) -> models.Schedule:
        """Read a schedule. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/schedules/{_codec.segment(schedule)}", params=_codec.query(**{"show_secrets": show_secrets}), decode=_codec.model(models.Schedule), timeout=timeout)

    def get_sandboxes_by_name_snapshots(self, name: str, *, timeout: float | None = None) -> list[models.Snapshot]:
        """List the snapshots of a sandbox. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/snapshots", decode=_codec.items(_codec.model(models.Snapshot)), timeout=timeout)

    def get_sandboxes_by_name_traces(self, name: str, *, timeout: float | None = None) -> list[models.Trace]:
        """List the traces of a sandbox. A trace says where the time of a wake or a create went. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/traces", decode=_codec.items(_codec.model(models.Trace)), timeout=timeout)

    def get_sandboxes_by_name_usage(self, name: str, *, timeout: float | None = None) -> models.SandboxUsage:
        """Read the usage of a sandbox. It wakes nothing. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/sandboxes/{_codec.segment(name)}/usage", decode=_codec.model(models.SandboxUsage), timeout=timeout)

    def get_schedule_executions(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, status: str | None = None, sandbox: str | None = None, schedule: str | None = None, since: str | None = None, until: str | None = None, timeout: float | None = None) -> Page[models.Execution]:
        """List the executions of schedules. An execution says whether the sandbox took the process, not how the process ended. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/schedule-executions", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "status": status, "sandbox": sandbox, "schedule": schedule, "since": since, "until": until}), decode=_codec.page(_codec.model(models.Execution)), timeout=timeout)

    def get_schedules(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, show_secrets: bool | None = None, type: str | None = None, sandbox: str | None = None, timeout: float | None = None) -> Page[models.Schedule]:
        """List the schedules of the workspace. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/schedules", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "show_secrets": show_secrets, "type": type, "sandbox": sandbox}), decode=_codec.page(_codec.model(models.Schedule)), timeout=timeout)

    def get_schedules_metrics(self, *, since: str | None = None, until: str | None = None, timeout: float | None = None) -> models.ScheduleMetrics:
        """Count the executions of schedules. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/schedules/metrics", params=_codec.query(**{"since": since, "until": until}), decode=_codec.model(models.ScheduleMetrics), timeout=timeout)

    def get_secrets(self, *, timeout: float | None = None) -> list[models.Secret]:
        """List secrets. Their values are masked. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/secrets", decode=_codec.items(_codec.model(models.Secret)), timeout=timeout)

    def get_secrets_by_secret(self, secret: str, *, timeout: float | None = None) -> models.Secret:
        """Read a secret. Its values are masked. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/secrets/{_codec.segment(secret)}", decode=_codec.model(models.Secret), timeout=timeout)

    def get_service_accounts(self, *, timeout: float | None = None) -> list[models.ServiceAccount]:
        """List service accounts. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/service_accounts", decode=_codec.items(_codec.model(models.ServiceAccount)), timeout=timeout)

    def get_service_accounts_by_account_api_keys(self, account: str, *, timeout: float | None = None) -> list[models.APIKey]:
        """List the keys of a service account. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/service_accounts/{_codec.segment(account)}/api_keys", decode=_codec.items(_codec.model(models.APIKey)), timeout=timeout)

    def get_snapshots(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, status: str | None = None, timeout: float | None = None) -> Page[models.Snapshot]:
        """List snapshots. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/snapshots", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "status": status}), decode=_codec.page(_codec.model(models.Snapshot)), timeout=timeout)

    def get_snapshots_by_snapshot(self, snapshot: str, *, timeout: float | None = None) -> models.Snapshot:
        """Read a snapshot. A name that several snapshots have is 409: send the id. Needs the scope sandboxes:get."""
        return self._transport.call("GET", f"{self._base}/snapshots/{_codec.segment(snapshot)}", decode=_codec.model(models.Snapshot), timeout=timeout)

    def get_usage_sandboxes(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, labels: list[str] | None = None, status: str | None = None, external_id: str | None = None, show_terminated: bool | None = None, timeout: float | None = None) -> Page[models.SandboxUsage]:
        """List the usage of sandboxes. It wakes nothing. Needs the scope sandboxes:list."""
        return self._transport.call("GET", f"{self._base}/usage/sandboxes", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "labels": labels, "status": status, "externalId": external_id, "showTerminated": show_terminated}), decode=_codec.page(_codec.model(models.SandboxUsage)), timeout=timeout)

    def get_users(self, *, timeout: float | None = None) -> list[models.User]:
        """List the members of the workspace. Needs the scope workspaces:get."""
        return self._transport.call("GET", f"{self._base}/users", decode=_codec.items(_codec.model(models.User)), timeout=timeout)

    def get_volume_templates(self, *, labels: list[str] | None = None, timeout: float | None = None) -> list[models.VolumeTemplate]:
        """List volume templates. Needs the scope volumeTemplates:list."""
        return self._transport.call("GET", f"{self._base}/volume_templates", params=_codec.query(**{"labels": labels}), decode=_codec.items(_codec.model(models.VolumeTemplate)), timeout=timeout)

    def get_volume_templates_by_template(self, template: str, *, timeout: float | None = None) -> models.VolumeTemplate:
        """Read a volume template. Needs the scope volumeTemplates:get."""
        return self._transport.call("GET", f"{self._base}/volume_templates/{_codec.segment(template)}", decode=_codec.model(models.VolumeTemplate), timeout=timeout)

    def get_volumes(self, *, q: str | None = None, sort: Literal["createdAt:desc", "createdAt:asc", "name:asc", "name:desc"] | None = None, anchor: Literal["start", "end"] | None = None, limit: int | None = None, cursor: str | None = None, labels: list[str] | None = None, status: str | None = None, external_id: str | None = None, timeout: float | None = None) -> Page[models.Volume]:
        """List volumes. Needs the scope volumes:list."""
        return self._transport.call("GET", f"{self._base}/volumes", params=_codec.query(**{"q": q, "sort": sort, "anchor": anchor, "limit": limit, "cursor": cursor, "labels": labels, "status": status, "externalId": external_id}), decode=_codec.page(_codec.model(models.Volume)), timeout=timeout)

    def get_volumes_by_external_id_by_external_id(self, external_id: str, *, timeout: float | None = None) -> models.Volume:
        """Read the newest volume with an external id. Needs the scope volumes:get."""
        return self._transport.call("GET", f"{self._base}/volumes/by-external-id/{_codec.segment(external_id)}", decode=_codec.model(models.Volume), timeout=timeout)

    def get_volumes_by_volume(self, volume: str, *, timeout: float | None = None) -> models.Volume:
        """Read a volume. Needs the scope volumes:get."""
        return self._transport.call("GET", f"{self._base}/volumes/{_codec.segment(volume)}", decode=_codec.model(models.Volume), timeout=timeout)

    def get_vpcs(self, *, timeout: float | None = None) -> list[models.NetworkResource]:
        """List VPCs. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs", decode=_codec.items(_codec.model(models.NetworkResource)), timeout=timeout)

    def get_vpcs_by_vpc(self, vpc: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Read a VPC. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs/{_codec.segment(vpc)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def get_vpcs_by_vpc_egressgateways(self, vpc: str, *, timeout: float | None = None) -> list[models.NetworkResource]:
        """List the egress gateways of a VPC. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways", decode=_codec.items(_codec.model(models.NetworkResource)), timeout=timeout)

    def get_vpcs_by_vpc_egressgateways_by_gateway(self, vpc: str, gateway: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Read an egress gateway. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def get_vpcs_by_vpc_egressgateways_by_gateway_ips(self, vpc: str, gateway: str, *, timeout: float | None = None) -> list[models.NetworkResource]:
        """List the addresses of an egress gateway. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}/ips", decode=_codec.items(_codec.model(models.NetworkResource)), timeout=timeout)

    def get_vpcs_by_vpc_egressgateways_by_gateway_ips_by_ip(self, vpc: str, gateway: str, ip: str, *, timeout: float | None = None) -> models.NetworkResource:
        """Read an address of an egress gateway. Needs the scope admin."""
        return self._transport.call("GET", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}/ips/{_codec.segment(ip)}", decode=_codec.model(models.NetworkResource), timeout=timeout)

    def get_well_known_oauth_authorization_server(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Discover the login as OAuth does. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/.well-known/oauth-authorization-server", decode=_codec.mapping(_codec.anything), timeout=timeout)

    def get_well_known_openid_configuration(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Discover the login as OpenID Connect does. Needs no credential."""
        return self._transport.call("GET", f"{self._base}/.well-known/openid-configuration", decode=_codec.mapping(_codec.anything), timeout=timeout)

    def get_whoami(self, *, timeout: float | None = None) -> models.Caller:
        """Say whose credential it is. Needs a credential; it is about its owner alone."""
        return self._transport.call("GET", f"{self._base}/whoami", decode=_codec.model(models.Caller), timeout=timeout)

    def get_workspaces(self, *, labels: list[str] | None = None, timeout: float | None = None) -> list[models.Workspace]:
        """List the workspaces of the caller. Needs the scope workspaces:list."""
        return self._transport.call("GET", f"{self._base}/workspaces", params=_codec.query(**{"labels": labels}), decode=_codec.items(_codec.model(models.Workspace)), timeout=timeout)

    def get_workspaces_by_workspace(self, workspace: str, *, count_resources: bool | None = None, timeout: float | None = None) -> models.Workspace:
        """Read a workspace. Needs the scope workspaces:get."""
        return self._transport.call("GET", f"{self._base}/workspaces/{_codec.segment(workspace)}", params=_codec.query(**{"countResources": count_resources}), decode=_codec.model(models.Workspace), timeout=timeout)

    def get_workspaces_by_workspace_quotas(self, workspace: str, *, timeout: float | None = None) -> list[models.QuotaStatus]:
        """List the quotas of a workspace. Needs the scope workspaces:get."""
        return self._transport.call("GET", f"{self._base}/workspaces/{_codec.segment(workspace)}/quotas", decode=_codec.items(_codec.model(models.QuotaStatus)), timeout=timeout)

    def post_api_keys(self, body: models.KeyRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.APIKey:
        """Create an API key. The answer has the key itself, this once. Needs the scope apiKey:write."""
        return self._transport.call("POST", f"{self._base}/api_keys", body=body, decode=_codec.model(models.APIKey), timeout=timeout)

    def post_builds(self, body: models.BuildRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Build:
        """Create a build of an image. The header X-Blaxel-Upload-Url of the answer, and its member uploadUrl, say where the files are to be put. The build begins when they are there. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/builds", body=body, decode=_codec.model(models.Build), timeout=timeout)

    def post_customdomains(self, body: models.CustomDomainRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.CustomDomain:
        """Create a custom domain. It serves nothing until it is verified. Needs the scope customdomains:create."""
        return self._transport.call("POST", f"{self._base}/customdomains", body=body, decode=_codec.model(models.CustomDomain), timeout=timeout)

    def post_customdomains_by_domain_share(self, domain: str, body: models.ShareRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.CustomDomain:
        """Share a custom domain with a workspace. Needs the scope customdomains:update."""
        return self._transport.call("POST", f"{self._base}/customdomains/{_codec.segment(domain)}/share", body=body, decode=_codec.model(models.CustomDomain), timeout=timeout)

    def post_customdomains_by_domain_verify(self, domain: str, *, timeout: float | None = None) -> models.CustomDomain:
        """Verify a custom domain. If the DNS lacks a record, the status is 200 and verificationError says what is missing. Needs the scope customdomains:update."""
        return self._transport.call("POST", f"{self._base}/customdomains/{_codec.segment(domain)}/verify", decode=_codec.model(models.CustomDomain), timeout=timeout)

    def post_drives(self, body: models.DriveRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Drive:
        """Create a drive. It is 501 on a platform without a bucket for drives. Needs the scope volumes:create."""
        return self._transport.call("POST", f"{self._base}/drives", body=body, decode=_codec.model(models.Drive), timeout=timeout)

    def post_drives_by_drive_access_token(self, drive: str, *, timeout: float | None = None) -> models.DriveToken:
        """Create an access token for a drive. Needs the scope volumes:get."""
        return self._transport.call("POST", f"{self._base}/drives/{_codec.segment(drive)}/access-token", decode=_codec.model(models.DriveToken), timeout=timeout)

    def post_images(self, body: models.ImageRequest | Mapping[str, Any], *, upload: bool | None = None, skip_build: bool | None = None, timeout: float | None = None) -> models.ImageResponse:
        """Import or build an image. The answer comes when the image is pulled. A name that exists means the new image from then on. With upload=true and no image, the header X-Blaxel-Upload-Url of the answer says where the files of a build are to be put. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/images", body=body, params=_codec.query(**{"upload": upload, "skip-build": skip_build}), decode=_codec.model(models.ImageResponse), timeout=timeout)

    def post_images_by_type_by_image_share(self, type: str, image: str, body: models.ShareRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Image:
        """Share an image with a workspace. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/share", body=body, decode=_codec.model(models.Image), timeout=timeout)

    def post_invitations_accept(self, body: models.AcceptRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.User:
        """Accept an invitation with its token. It makes an account if the person has none. Needs no credential."""
        return self._transport.call("POST", f"{self._base}/invitations/accept", body=body, decode=_codec.model(models.User), timeout=timeout)

    def post_invitations_decline(self, body: models.DeclineRequest | Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Decline an invitation with its token. Needs no credential."""
        return self._transport.call("POST", f"{self._base}/invitations/decline", body=body, decode=_codec.anything, timeout=timeout)

    def post_login_device(self, body: Mapping[str, Any], *, timeout: float | None = None) -> models.DeviceAnswer:
        """Begin the login of a device. Needs no credential."""
        return self._transport.call("POST", f"{self._base}/login/device", body=body, decode=_codec.model(models.DeviceAnswer), timeout=timeout)

    def post_login_verify(self, body: Mapping[str, Any], *, timeout: float | None = None) -> bytes:
        """Take the answer of the device page. Needs no credential."""
        return (self._transport.send("POST", f"{self._base}/login/verify", body=body, timeout=timeout)).content

    def post_oauth_authorize(self, body: Mapping[str, Any], *, timeout: float | None = None) -> bytes:
        """Take the answer of the consent page. Needs no credential."""
        return (self._transport.send("POST", f"{self._base}/oauth/authorize", body=body, timeout=timeout)).content

    def post_oauth_clients(self, body: models.ClientRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.OAuthClient:
        """Register a program that users log in with. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/oauth/clients", body=body, decode=_codec.model(models.OAuthClient), timeout=timeout)

    def post_oauth_revoke(self, body: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Revoke the grant of a token. Needs no credential."""
        return self._transport.call("POST", f"{self._base}/oauth/revoke", body=body, decode=_codec.mapping(_codec.anything), timeout=timeout)

    def post_oauth_token(self, body: Mapping[str, Any], *, timeout: float | None = None) -> models.TokenAnswer:
        """Get tokens for a grant. Needs no credential."""
        return self._transport.call("POST", f"{self._base}/oauth/token", body=body, decode=_codec.model(models.TokenAnswer), timeout=timeout)

    def post_pending_image_shares_by_share_accept(self, share: str, *, timeout: float | None = None) -> models.Image:
        """Accept a share of an image. It is 404, since no share awaits an answer. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/pending-image-shares/{_codec.segment(share)}/accept", decode=_codec.model(models.Image), timeout=timeout)

    def post_pending_image_shares_by_share_decline(self, share: str, *, timeout: float | None = None) -> models.Image:
        """Decline a share of an image. It is 404, since no share awaits an answer. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/pending-image-shares/{_codec.segment(share)}/decline", decode=_codec.model(models.Image), timeout=timeout)

    def post_platform_nodes_by_node_cordon(self, node: str, *, timeout: float | None = None) -> models.Node:
        """Cordon a node. It keeps its sandboxes, and takes no new ones. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/platform/nodes/{_codec.segment(node)}/cordon", decode=_codec.model(models.Node), timeout=timeout)

    def post_platform_nodes_by_node_drain(self, node: str, *, timeout: float | None = None) -> models.Drained:
        """Drain a node. It takes no new sandboxes, and those that it has move to other nodes. Requests to one that moves wait. The answer comes when all have moved, and says how many could not. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/platform/nodes/{_codec.segment(node)}/drain", decode=_codec.model(models.Drained), timeout=timeout)

    def post_platform_nodes_by_node_uncordon(self, node: str, *, timeout: float | None = None) -> models.Node:
        """Uncordon a node. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/platform/nodes/{_codec.segment(node)}/uncordon", decode=_codec.model(models.Node), timeout=timeout)

    def post_platform_nodes_settle(self, *, force: bool | None = None, timeout: float | None = None) -> models.Settled:
        """Settle restored records. Until then, restored records count as older than the nodes. It is 409 if something would be lost, or a node on record is away. With force, that is lost, and the answer lists it. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/platform/nodes/settle", params=_codec.query(**{"force": force}), decode=_codec.model(models.Settled), timeout=timeout)

    def post_platform_nodes_tokens(self, body: models.NodeTokenRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.NodeToken:
        """Create a token for new nodes. Only operators get it. The token is in this answer alone. Machines join with it until it expires. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/platform/nodes/tokens", body=body, decode=_codec.model(models.NodeToken), timeout=timeout)

    def post_policies(self, body: models.PolicyRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Policy:
        """Create a policy. Needs the scope policies:create."""
        return self._transport.call("POST", f"{self._base}/policies", body=body, decode=_codec.model(models.Policy), timeout=timeout)

    def post_sandboxes(self, body: models.SandboxRequest | Mapping[str, Any], *, create_if_not_exist: bool | None = None, upload: bool | None = None, timeout: float | None = None) -> models.Sandbox:
        """Create a sandbox. The answer comes when the sandbox is deployed. A name that a sandbox has is 409, unless createIfNotExist is true. With upload=true it comes at once, and its header X-Blaxel-Upload-Url says where the files of the image are to be put. Needs the scope sandboxes:create."""
        return self._transport.call("POST", f"{self._base}/sandboxes", body=body, params=_codec.query(**{"createIfNotExist": create_if_not_exist, "upload": upload}), decode=_codec.model(models.Sandbox), timeout=timeout)

    def post_sandboxes_by_name_archive(self, name: str, *, timeout: float | None = None) -> models.Sandbox:
        """Archive a sandbox. Memory is lost. The answer comes at once, and the sandbox is ARCHIVED later. No request wakes it then. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/archive", decode=_codec.model(models.Sandbox), timeout=timeout)

    def post_sandboxes_by_name_fork(self, name: str, body: models.ForkRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.ForkResponse:
        """Fork a sandbox. Without snapshotId, it takes a snapshot first, which stays. Memory is copied as it is, with the secrets in it. Needs the scope sandboxes:create."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/fork", body=body, decode=_codec.model(models.ForkResponse), timeout=timeout)

    def post_sandboxes_by_name_move(self, name: str, body: models.MoveRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Moved:
        """Move a sandbox to another node. Only operators can do it. The sandbox sleeps here and wakes there, with its memory and processes. Requests to it wait meanwhile. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/move", body=body, decode=_codec.model(models.Moved), timeout=timeout)

    def post_sandboxes_by_name_previews(self, name: str, body: models.PreviewRequest | Mapping[str, Any], *, force: bool | None = None, timeout: float | None = None) -> models.Preview:
        """Create a preview. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/previews", body=body, params=_codec.query(**{"force": force}), decode=_codec.model(models.Preview), timeout=timeout)

    def post_sandboxes_by_name_previews_by_preview_tokens(self, name: str, preview: str, body: models.PreviewTokenRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.PreviewToken:
        """Create a token for a preview. Needs the scope sandboxes:control."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}/tokens", body=body, decode=_codec.model(models.PreviewToken), timeout=timeout)

    def post_sandboxes_by_name_schedules(self, name: str, body: models.ScheduleRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Schedule:
        """Create a schedule. A time of the past, or one that never comes, is 400. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/schedules", body=body, decode=_codec.model(models.Schedule), timeout=timeout)

    def post_sandboxes_by_name_sleep(self, name: str, *, tier: Literal["paused", "disk"] | None = None, timeout: float | None = None) -> models.Sandbox:
        """Put a sandbox to sleep. Needs the scope sandboxes:control."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/sleep", params=_codec.query(**{"tier": tier}), decode=_codec.model(models.Sandbox), timeout=timeout)

    def post_sandboxes_by_name_snapshots(self, name: str, body: models.SnapshotRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Snapshot:
        """Create a snapshot of a sandbox. The answer comes when the snapshot is ready. Requests to a sandbox that runs wait for a moment meanwhile. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/snapshots", body=body, decode=_codec.model(models.Snapshot), timeout=timeout)

    def post_sandboxes_by_name_snapshots_by_snapshot_restore(self, name: str, snapshot: str, *, timeout: float | None = None) -> models.RestoreResponse:
        """Restore a sandbox from its snapshot. What the sandbox did since the snapshot is lost. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/snapshots/{_codec.segment(snapshot)}/restore", decode=_codec.model(models.RestoreResponse), timeout=timeout)

    def post_sandboxes_by_name_tickets(self, name: str, *, timeout: float | None = None) -> models.Ticket:
        """Create a ticket for the terminal. A ticket opens one terminal, and is good for 30 seconds. Needs the scope sandboxes:control."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/tickets", decode=_codec.model(models.Ticket), timeout=timeout)

    def post_sandboxes_by_name_unarchive(self, name: str, *, timeout: float | None = None) -> models.Sandbox:
        """Unarchive a sandbox. The answer comes at once, and the sandbox is DEPLOYED later. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/unarchive", decode=_codec.model(models.Sandbox), timeout=timeout)

    def post_sandboxes_by_name_wake(self, name: str, *, timeout: float | None = None) -> models.Sandbox:
        """Wake a sandbox. Needs the scope sandboxes:control."""
        return self._transport.call("POST", f"{self._base}/sandboxes/{_codec.segment(name)}/wake", decode=_codec.model(models.Sandbox), timeout=timeout)

    def post_secrets(self, body: models.SecretRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Secret:
        """Create a secret. The answer has its values masked. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/secrets", body=body, decode=_codec.model(models.Secret), timeout=timeout)

    def post_service_accounts(self, body: models.AccountRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.ServiceAccount:
        """Create a service account. The answer has its client_secret, this once. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/service_accounts", body=body, decode=_codec.model(models.ServiceAccount), timeout=timeout)

    def post_service_accounts_by_account_api_keys(self, account: str, body: models.KeyRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.APIKey:
        """Create a key for a service account. The answer has the key itself, this once. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/service_accounts/{_codec.segment(account)}/api_keys", body=body, decode=_codec.model(models.APIKey), timeout=timeout)

    def post_snapshots(self, body: models.SnapshotRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Snapshot:
        """Create a snapshot of any sandbox. The answer comes when the snapshot is ready. Requests to a sandbox that runs wait for a moment meanwhile. Needs the scope sandboxes:update."""
        return self._transport.call("POST", f"{self._base}/snapshots", body=body, decode=_codec.model(models.Snapshot), timeout=timeout)

    def post_snapshots_by_snapshot_fork(self, snapshot: str, body: models.ForkRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.ForkResponse:
        """Fork a snapshot. The answer comes when the fork is deployed. Memory is copied as it is, with the secrets in it. Needs the scope sandboxes:create."""
        return self._transport.call("POST", f"{self._base}/snapshots/{_codec.segment(snapshot)}/fork", body=body, decode=_codec.model(models.ForkResponse), timeout=timeout)

    def post_users(self, body: models.InviteRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Invitation:
        """Invite a user. The answer has the token of the invitation, this once. The platform sends no mail. Needs the scope workspaces:invite."""
        return self._transport.call("POST", f"{self._base}/users", body=body, decode=_codec.model(models.Invitation), timeout=timeout)

    def post_volume_templates(self, body: models.VolumeTemplateRequest | Mapping[str, Any], *, upload: bool | None = None, version: str | None = None, timeout: float | None = None) -> models.VolumeTemplate:
        """Create a volume template. With upload=true, the header X-Blaxel-Upload-Url of the answer says where its files are to be put. Needs the scope volumeTemplates:create."""
        return self._transport.call("POST", f"{self._base}/volume_templates", body=body, params=_codec.query(**{"upload": upload, "version": version}), decode=_codec.model(models.VolumeTemplate), timeout=timeout)

    def post_volumes(self, body: models.VolumeRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Volume:
        """Create a volume. The answer comes when the volume can be attached. Needs the scope volumes:create."""
        return self._transport.call("POST", f"{self._base}/volumes", body=body, decode=_codec.model(models.Volume), timeout=timeout)

    def post_vpcs(self, body: models.NetworkResourceRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.NetworkResource:
        """Create a VPC. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/vpcs", body=body, decode=_codec.model(models.NetworkResource), timeout=timeout)

    def post_vpcs_by_vpc_egressgateways(self, vpc: str, body: models.NetworkResourceRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.NetworkResource:
        """Create an egress gateway. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways", body=body, decode=_codec.model(models.NetworkResource), timeout=timeout)

    def post_vpcs_by_vpc_egressgateways_by_gateway_ips(self, vpc: str, gateway: str, body: models.NetworkResourceRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.NetworkResource:
        """Give an egress gateway an address. Without a free address it is FAILED, and gets the next one that is free. Needs the scope admin."""
        return self._transport.call("POST", f"{self._base}/vpcs/{_codec.segment(vpc)}/egressgateways/{_codec.segment(gateway)}/ips", body=body, decode=_codec.model(models.NetworkResource), timeout=timeout)

    def post_workspaces(self, body: models.WorkspaceRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Workspace:
        """Create a workspace. The caller becomes its admin. Without the right to create workspaces it is 403. Needs the scope workspaces:create."""
        return self._transport.call("POST", f"{self._base}/workspaces", body=body, decode=_codec.model(models.Workspace), timeout=timeout)

    def post_workspaces_availability(self, body: models.NameRequest | Mapping[str, Any], *, with_reason: bool | None = None, timeout: float | None = None) -> bool | models.ReasonedAvailability:
        """Ask whether a workspace name is free. Needs the scope workspaces:create."""
        return self._transport.call("POST", f"{self._base}/workspaces/availability", body=body, params=_codec.query(**{"withReason": with_reason}), decode=_codec.either(bool, models.ReasonedAvailability), timeout=timeout)

    def post_workspaces_by_workspace_accept(self, workspace: str, *, timeout: float | None = None) -> models.Workspace:
        """Accept an invitation to a workspace. Needs a credential; it is about its owner alone."""
        return self._transport.call("POST", f"{self._base}/workspaces/{_codec.segment(workspace)}/accept", decode=_codec.model(models.Workspace), timeout=timeout)

    def post_workspaces_by_workspace_decline(self, workspace: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Decline an invitation to a workspace. Needs a credential; it is about its owner alone."""
        return self._transport.call("POST", f"{self._base}/workspaces/{_codec.segment(workspace)}/decline", decode=_codec.anything, timeout=timeout)

    def put_builds_by_build_context(self, build: str, content: bytes, *, token: str | None = None, timeout: float | None = None) -> models.Received:
        """Upload the files of a build. The body is a zip, a tar or a tar.gz with the Dockerfile in it. The address is the credential, and is good once. Needs no credential."""
        return self._transport.call("PUT", f"{self._base}/builds/{_codec.segment(build)}/context", content=content, params=_codec.query(**{"token": token}), decode=_codec.model(models.Received), timeout=timeout)

    def put_customdomains_by_domain(self, domain: str, body: models.CustomDomainRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.CustomDomain:
        """Update a custom domain. Needs the scope customdomains:update."""
        return self._transport.call("PUT", f"{self._base}/customdomains/{_codec.segment(domain)}", body=body, decode=_codec.model(models.CustomDomain), timeout=timeout)

    def put_drives_by_drive(self, drive: str, body: models.DriveRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Drive:
        """Update a drive. Needs the scope volumes:create."""
        return self._transport.call("PUT", f"{self._base}/drives/{_codec.segment(drive)}", body=body, decode=_codec.model(models.Drive), timeout=timeout)

    def put_images_by_type_by_image_archive(self, type: str, image: str, content: bytes, *, timeout: float | None = None) -> models.ImageResponse:
        """Upload an image. The body is an OCI layout, or what docker saves, of one image for the machines of the platform. A name that exists means the new image from then on. Needs the scope admin."""
        return self._transport.call("PUT", f"{self._base}/images/{_codec.segment(type)}/{_codec.segment(image)}/archive", content=content, decode=_codec.model(models.ImageResponse), timeout=timeout)

    def put_password(self, body: models.PasswordRequest | Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Set the password of the caller. All tokens of the user become void. Needs a credential; it is about its owner alone."""
        return self._transport.call("PUT", f"{self._base}/password", body=body, decode=_codec.anything, timeout=timeout)

    def put_platform_users_by_user(self, user: str, body: models.RightsRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.User:
        """Change the rights of a user. Only operators may. Needs the scope admin."""
        return self._transport.call("PUT", f"{self._base}/platform/users/{_codec.segment(user)}", body=body, decode=_codec.model(models.User), timeout=timeout)

    def put_policies_by_policy(self, policy: str, body: models.PolicyRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Policy:
        """Update a policy. A policy that gets another type loses the lists of the type before. Needs the scope policies:update."""
        return self._transport.call("PUT", f"{self._base}/policies/{_codec.segment(policy)}", body=body, decode=_codec.model(models.Policy), timeout=timeout)

    def put_sandboxes_by_name(self, name: str, body: models.SandboxRequest | Mapping[str, Any], *, upload: bool | None = None, timeout: float | None = None) -> models.Sandbox:
        """Update a sandbox. A change of the image, the memory or the variables replaces the machine, and its content is lost. With upload=true the change is made when an image is built of the files that are put to the address in the header X-Blaxel-Upload-Url. Needs the scope sandboxes:update."""
        return self._transport.call("PUT", f"{self._base}/sandboxes/{_codec.segment(name)}", body=body, params=_codec.query(**{"upload": upload}), decode=_codec.model(models.Sandbox), timeout=timeout)

    def put_sandboxes_by_name_previews_by_preview(self, name: str, preview: str, body: models.PreviewRequest | Mapping[str, Any], *, force: bool | None = None, timeout: float | None = None) -> models.Preview:
        """Update a preview. Needs the scope sandboxes:update."""
        return self._transport.call("PUT", f"{self._base}/sandboxes/{_codec.segment(name)}/previews/{_codec.segment(preview)}", body=body, params=_codec.query(**{"force": force}), decode=_codec.model(models.Preview), timeout=timeout)

    def put_sandboxes_by_name_schedules_by_schedule(self, name: str, schedule: str, body: models.ScheduleRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Schedule:
        """Update a schedule. A masked value of input.env means the value of before. Needs the scope sandboxes:update."""
        return self._transport.call("PUT", f"{self._base}/sandboxes/{_codec.segment(name)}/schedules/{_codec.segment(schedule)}", body=body, decode=_codec.model(models.Schedule), timeout=timeout)

    def put_secrets_by_secret(self, secret: str, body: models.SecretRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Secret:
        """Update a secret. Keys that the body leaves out are removed. A masked value means the value of before. Needs the scope admin."""
        return self._transport.call("PUT", f"{self._base}/secrets/{_codec.segment(secret)}", body=body, decode=_codec.model(models.Secret), timeout=timeout)

    def put_service_accounts_by_account(self, account: str, body: models.AccountRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.ServiceAccount:
        """Update a service account. Its keys and tokens lose a scope at once when the account loses it. Needs the scope admin."""
        return self._transport.call("PUT", f"{self._base}/service_accounts/{_codec.segment(account)}", body=body, decode=_codec.model(models.ServiceAccount), timeout=timeout)

    def put_uploads_by_upload(self, upload: str, content: bytes, *, token: str | None = None, timeout: float | None = None) -> models.Uploaded:
        """Upload the files of a volume template. The address is the credential. Needs no credential."""
        return self._transport.call("PUT", f"{self._base}/uploads/{_codec.segment(upload)}", content=content, params=_codec.query(**{"token": token}), decode=_codec.model(models.Uploaded), timeout=timeout)

    def put_users_by_user(self, user: str, body: models.RoleRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.User:
        """Change the role of a member. It is 409 for the last admin. Needs the scope workspaces:update."""
        return self._transport.call("PUT", f"{self._base}/users/{_codec.segment(user)}", body=body, decode=_codec.model(models.User), timeout=timeout)

    def put_volume_templates_by_template(self, template: str, body: models.VolumeTemplateRequest | Mapping[str, Any], *, upload: bool | None = None, version: str | None = None, timeout: float | None = None) -> models.VolumeTemplate:
        """Create or update a volume template. With upload=true, the header X-Blaxel-Upload-Url of the answer says where its files are to be put. Needs the scope volumeTemplates:upsert."""
        return self._transport.call("PUT", f"{self._base}/volume_templates/{_codec.segment(template)}", body=body, params=_codec.query(**{"upload": upload, "version": version}), decode=_codec.model(models.VolumeTemplate), timeout=timeout)

    def put_volumes_by_volume(self, volume: str, body: models.VolumeRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Volume:
        """Update a volume. Needs the scope volumes:create."""
        return self._transport.call("PUT", f"{self._base}/volumes/{_codec.segment(volume)}", body=body, decode=_codec.model(models.Volume), timeout=timeout)

    def put_workspaces_by_workspace(self, workspace: str, body: models.WorkspaceRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Workspace:
        """Update a workspace. Needs the scope workspaces:update."""
        return self._transport.call("PUT", f"{self._base}/workspaces/{_codec.segment(workspace)}", body=body, decode=_codec.model(models.Workspace), timeout=timeout)

    def put_workspaces_by_workspace_quotas(self, workspace: str, body: models.QuotaRequest | Mapping[str, Any], *, timeout: float | None = None) -> list[models.QuotaStatus]:
        """Set the quotas of a workspace. Only operators may. A limit below the present use removes nothing, and refuses more. Needs the scope admin."""
        return self._transport.call("PUT", f"{self._base}/workspaces/{_codec.segment(workspace)}/quotas", body=body, decode=_codec.items(_codec.model(models.QuotaStatus)), timeout=timeout)


class SandboxOperations:
    "The calls of the API inside a sandbox."

    def __init__(self, transport: Transport, base: str) -> None:
        self._transport = transport
        self._base = base

    def abort_upload(self, id: str, *, timeout: float | None = None) -> models.Success:
        """Drop an upload."""
        return self._transport.call("DELETE", f"{self._base}/filesystem-multipart/{_codec.segment(id)}/abort", decode=_codec.model(models.Success), timeout=timeout)

    def apply_edit(self, path: str, *, timeout: float | None = None) -> None:
        """Refuse an edit by a language model. The answer is always 400: it needs a service outside of the sandbox."""
        return self._transport.call("PUT", f"{self._base}/codegen/fastapply/{_codec.file_path(path)}", decode=_codec.nothing, timeout=timeout)

    def archive_status(self, *, timeout: float | None = None) -> models.ArchiveStatus:
        """Say how the export goes."""
        return self._transport.call("GET", f"{self._base}/archive/status", decode=_codec.model(models.ArchiveStatus), timeout=timeout)

    def call_tool(self, body: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Speak the Model Context Protocol. One message of JSON-RPC, such as tools/list or tools/call. There are no sessions. A notification is answered by 202."""
        return self._transport.call("POST", f"{self._base}/mcp", body=body, decode=_codec.anything, timeout=timeout)

    def close_process_input(self, id: str, *, timeout: float | None = None) -> models.Success:
        """Close the standard input of a process."""
        return self._transport.call("DELETE", f"{self._base}/process/{_codec.segment(id)}/stdin", decode=_codec.model(models.Success), timeout=timeout)

    def complete_upload(self, id: str, body: models.UploadCompleteRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Success:
        """Make the file of its parts."""
        return self._transport.call("POST", f"{self._base}/filesystem-multipart/{_codec.segment(id)}/complete", body=body, decode=_codec.model(models.Success), timeout=timeout)

    def delete_file(self, path: str, *, recursive: bool | None = None, timeout: float | None = None) -> models.Success:
        """Delete a file or a directory."""
        return self._transport.call("DELETE", f"{self._base}/filesystem/{_codec.file_path(path)}", params=_codec.query(**{"recursive": recursive}), decode=_codec.model(models.Success), timeout=timeout)

    def delete_tree(self, path: str, *, recursive: bool | None = None, timeout: float | None = None) -> models.Success:
        """Delete a directory."""
        return self._transport.call("DELETE", f"{self._base}/filesystem/tree/{_codec.file_path(path)}", params=_codec.query(**{"recursive": recursive}), decode=_codec.model(models.Success), timeout=timeout)

    def delete_tunnel(self, *, timeout: float | None = None) -> None:
        """Remove the tunnel, of which there is none. The answer is always 400."""
        return self._transport.call("DELETE", f"{self._base}/network/tunnel", decode=_codec.nothing, timeout=timeout)

    def describe_sandbox_api(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Describe this API. The answer is this document."""
        return self._transport.call("GET", f"{self._base}/openapi.json", decode=_codec.anything, timeout=timeout)

    def export_archive(self, body: models.ArchiveExportRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.ArchiveResult:
        """Send the files that differ from an image to an address. It stops all processes, and the sandbox refuses changes until resumeArchive. A dry run does neither."""
        return self._transport.call("POST", f"{self._base}/archive/export", body=body, decode=_codec.model(models.ArchiveResult), timeout=timeout)

    def find_files(self, path: str, *, type: Literal["file", "directory"] | None = None, patterns: str | None = None, max_results: int | None = None, exclude_dirs: str | None = None, exclude_hidden: bool | None = None, timeout: float | None = None) -> models.FoundFiles:
        """Find files by name."""
        return self._transport.call("GET", f"{self._base}/filesystem-find/{_codec.file_path(path)}", params=_codec.query(**{"type": type, "patterns": patterns, "maxResults": max_results, "excludeDirs": exclude_dirs, "excludeHidden": exclude_hidden}), decode=_codec.model(models.FoundFiles), timeout=timeout)

    def get_process(self, id: str, *, timeout: float | None = None) -> models.Process:
        """Read a process. It has the end of its output."""
        return self._transport.call("GET", f"{self._base}/process/{_codec.segment(id)}", decode=_codec.model(models.Process), timeout=timeout)

    def get_process_logs(self, id: str, *, timeout: float | None = None) -> models.ProcessOutput:
        """Read what a process wrote."""
        return self._transport.call("GET", f"{self._base}/process/{_codec.segment(id)}/logs", decode=_codec.model(models.ProcessOutput), timeout=timeout)

    def kill_process(self, id: str, *, timeout: float | None = None) -> models.Success:
        """End a process and its group at once (SIGKILL)."""
        return self._transport.call("DELETE", f"{self._base}/process/{_codec.segment(id)}/kill", decode=_codec.model(models.Success), timeout=timeout)

    def list_mounts(self, *, timeout: float | None = None) -> models.DriveMounts:
        """List the drives that are mounted."""
        return self._transport.call("GET", f"{self._base}/drives/mount", decode=_codec.model(models.DriveMounts), timeout=timeout)

    def list_process_ports(self, id: str, *, timeout: float | None = None) -> models.ProcessPorts:
        """List the ports of a process."""
        return self._transport.call("GET", f"{self._base}/network/process/{_codec.segment(id)}/ports", decode=_codec.model(models.ProcessPorts), timeout=timeout)

    def list_processes(self, *, timeout: float | None = None) -> list[models.Process]:
        """List processes. The newest is first, and each has the end of its output."""
        return self._transport.call("GET", f"{self._base}/process", decode=_codec.items(_codec.model(models.Process)), timeout=timeout)

    def list_upload_parts(self, id: str, *, timeout: float | None = None) -> models.UploadParts:
        """List the parts of an upload."""
        return self._transport.call("GET", f"{self._base}/filesystem-multipart/{_codec.segment(id)}/parts", decode=_codec.model(models.UploadParts), timeout=timeout)

    def list_uploads(self, *, timeout: float | None = None) -> models.UploadList:
        """List the uploads that have not ended."""
        return self._transport.call("GET", f"{self._base}/filesystem-multipart", decode=_codec.model(models.UploadList), timeout=timeout)

    def listen_to_tools(self, *, timeout: float | None = None) -> None:
        """Refuse a stream of messages. The answer is always 405: the agent sends no messages by itself."""
        return self._transport.call("GET", f"{self._base}/mcp", decode=_codec.nothing, timeout=timeout)

    def mount_drive(self, body: models.DriveMountRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.MountedDrive:
        """Mount a drive."""
        return self._transport.call("POST", f"{self._base}/drives/mount", body=body, decode=_codec.model(models.MountedDrive), timeout=timeout)

    def port_delete(self, port: int, path: str, *, timeout: float | None = None) -> bytes:
        """DELETE from a server in the sandbox. The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too."""
        return (self._transport.send("DELETE", f"{self._base}/port/{_codec.segment(port)}/{_codec.file_path(path)}", timeout=timeout)).content

    def port_get(self, port: int, path: str, *, timeout: float | None = None) -> bytes:
        """GET from a server in the sandbox. The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too."""
        return (self._transport.send("GET", f"{self._base}/port/{_codec.segment(port)}/{_codec.file_path(path)}", timeout=timeout)).content

    def port_patch(self, port: int, path: str, content: bytes, *, timeout: float | None = None) -> bytes:
        """PATCH from a server in the sandbox. The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too."""
        return (self._transport.send("PATCH", f"{self._base}/port/{_codec.segment(port)}/{_codec.file_path(path)}", content=content, timeout=timeout)).content

    def port_post(self, port: int, path: str, content: bytes, *, timeout: float | None = None) -> bytes:
        """POST from a server in the sandbox. The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too."""
        return (self._transport.send("POST", f"{self._base}/port/{_codec.segment(port)}/{_codec.file_path(path)}", content=content, timeout=timeout)).content

    def port_put(self, port: int, path: str, content: bytes, *, timeout: float | None = None) -> bytes:
        """PUT from a server in the sandbox. The request goes to the port with the rest of the path. The answer is that of the server. WebSockets work too."""
        return (self._transport.send("PUT", f"{self._base}/port/{_codec.segment(port)}/{_codec.file_path(path)}", content=content, timeout=timeout)).content

    def rank_files(self, path: str, *, timeout: float | None = None) -> None:
        """Refuse a ranking by a language model. The answer is always 400: it needs a service outside of the sandbox."""
        return self._transport.call("GET", f"{self._base}/codegen/reranking/{_codec.file_path(path)}", decode=_codec.nothing, timeout=timeout)

    def read_file(self, path: str, *, download: bool | None = None, timeout: float | None = None) -> models.Directory | models.FileContent:
        """Read a file or list a directory. A file is JSON with its content, unless the caller asks for its bytes: by download=true, or by a header Accept without JSON and */*. Bytes may be asked for in part, and on conditions."""
        return self._transport.call("GET", f"{self._base}/filesystem/{_codec.file_path(path)}", params=_codec.query(**{"download": download}), decode=_codec.either(models.Directory, models.FileContent), timeout=timeout)

    def read_tree(self, path: str, *, timeout: float | None = None) -> models.Directory:
        """List a directory."""
        return self._transport.call("GET", f"{self._base}/filesystem/tree/{_codec.file_path(path)}", decode=_codec.model(models.Directory), timeout=timeout)

    def reload_environment(self, *, timeout: float | None = None) -> models.ReloadedVariables:
        """Take variables from the document of the sandbox. New processes get the variables of the document. Variables of an earlier document that are not in this one get back what they were."""
        return self._transport.call("POST", f"{self._base}/environment/reload", decode=_codec.model(models.ReloadedVariables), timeout=timeout)

    def resume_archive(self, *, timeout: float | None = None) -> models.ArchiveStatus:
        """Let the sandbox change again."""
        return self._transport.call("POST", f"{self._base}/archive/resume", decode=_codec.model(models.ArchiveStatus), timeout=timeout)

    def sandbox_health(self, *, timeout: float | None = None) -> models.SandboxHealth:
        """Say how the agent is."""
        return self._transport.call("GET", f"{self._base}/health", decode=_codec.model(models.SandboxHealth), timeout=timeout)

    def search_files(self, path: str, *, query: str | None = None, patterns: str | None = None, max_results: int | None = None, exclude_dirs: str | None = None, exclude_hidden: bool | None = None, timeout: float | None = None) -> models.RankedFiles:
        """Find files by a part of the path. The letters of the query are in the path, in their order. Without a query, it is the last element of the path."""
        return self._transport.call("GET", f"{self._base}/filesystem-search/{_codec.file_path(path)}", params=_codec.query(**{"query": query, "patterns": patterns, "maxResults": max_results, "excludeDirs": exclude_dirs, "excludeHidden": exclude_hidden}), decode=_codec.model(models.RankedFiles), timeout=timeout)

    def search_text(self, path: str, *, query: str, case_sensitive: bool | None = None, context_lines: int | None = None, file_pattern: str | None = None, max_results: int | None = None, exclude_dirs: str | None = None, timeout: float | None = None) -> models.TextMatches:
        """Find text in files."""
        return self._transport.call("GET", f"{self._base}/filesystem-content-search/{_codec.file_path(path)}", params=_codec.query(**{"query": query, "caseSensitive": case_sensitive, "contextLines": context_lines, "filePattern": file_pattern, "maxResults": max_results, "excludeDirs": exclude_dirs}), decode=_codec.model(models.TextMatches), timeout=timeout)

    def set_tunnel(self, body: models.TunnelRequest | Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Check a tunnel, which sandboxes do not get. The answer is always an error: sandboxes have no tunnels of their own."""
        return self._transport.call("PUT", f"{self._base}/network/tunnel/config", body=body, decode=_codec.nothing, timeout=timeout)

    def start_port_monitor(self, id: str, body: models.MonitorRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Success:
        """Call back when a process serves a new port."""
        return self._transport.call("POST", f"{self._base}/network/process/{_codec.segment(id)}/monitor", body=body, decode=_codec.model(models.Success), timeout=timeout)

    def start_process(self, body: models.ProcessRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Process:
        """Run a command. The answer comes at once, when the process serves its ports, or with its output when it has ended. With the header Accept: text/event-stream it is a stream of lines, which ends with the result."""
        return self._transport.call("POST", f"{self._base}/process", body=body, decode=_codec.model(models.Process), timeout=timeout)

    def start_upload(self, path: str, body: models.UploadRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.UploadStarted:
        """Begin an upload."""
        return self._transport.call("POST", f"{self._base}/filesystem-multipart/initiate/{_codec.file_path(path)}", body=body, decode=_codec.model(models.UploadStarted), timeout=timeout)

    def stop_port_monitor(self, id: str, *, timeout: float | None = None) -> models.Success:
        """Stop calling back."""
        return self._transport.call("DELETE", f"{self._base}/network/process/{_codec.segment(id)}/monitor", decode=_codec.model(models.Success), timeout=timeout)

    def stop_process(self, id: str, *, timeout: float | None = None) -> models.Success:
        """Ask a process and its group to end (SIGTERM)."""
        return self._transport.call("DELETE", f"{self._base}/process/{_codec.segment(id)}", decode=_codec.model(models.Success), timeout=timeout)

    def stream_process_logs(self, id: str) -> Iterator[str]:
        """Stream what a process writes. Each line is stdout: or stderr: and a line of the output, from its beginning on, or [keepalive]. The stream ends with the process."""
        return self._transport.lines("GET", f"{self._base}/process/{_codec.segment(id)}/logs/stream")

    def terminal_page(self, *, token: str | None = None, timeout: float | None = None) -> bytes:
        """A page with a terminal. A browser opens it with a ticket, see POST /sandboxes/{name}/tickets of the control API."""
        return (self._transport.send("GET", f"{self._base}/terminal", params=_codec.query(**{"token": token}), timeout=timeout)).content

    def unmount_drive(self, mount_path: str, *, timeout: float | None = None) -> models.UnmountedDrive:
        """Unmount a drive."""
        return self._transport.call("DELETE", f"{self._base}/drives/mount/{_codec.segment(mount_path)}", decode=_codec.model(models.UnmountedDrive), timeout=timeout)

    def upgrade_sandbox_api(self, body: models.UpgradeRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.UpgradeResponse:
        """Count an upgrade as done. The platform replaces its agents itself, so that there is nothing to do. Clients wait for the count in /health."""
        return self._transport.call("POST", f"{self._base}/upgrade", body=body, decode=_codec.model(models.UpgradeResponse), timeout=timeout)

    def upload_part(self, id: str, content: bytes, *, part_number: int, timeout: float | None = None) -> models.UploadPart:
        """Upload a part. A part that comes again replaces the one before."""
        return self._transport.call("PUT", f"{self._base}/filesystem-multipart/{_codec.segment(id)}/part", content=content, params=_codec.query(**{"partNumber": part_number}), decode=_codec.model(models.UploadPart), timeout=timeout)

    def watch_files(self, path: str, *, ignore: str | None = None) -> Iterator[str]:
        """Stream the changes in a directory. Each line is the JSON of an event, or [keepalive]. A path that ends in /** means all directories below it. The stream ends when the caller leaves or the directory does."""
        return self._transport.lines("GET", f"{self._base}/watch/filesystem/{_codec.file_path(path)}", params=_codec.query(**{"ignore": ignore}))

    def welcome(self, *, timeout: float | None = None) -> models.Welcome:
        """Say where to begin."""
        return self._transport.call("GET", f"{self._base}/", decode=_codec.model(models.Welcome), timeout=timeout)

    def welcome_delete(self, *, timeout: float | None = None) -> models.Welcome:
        """Say where to begin."""
        return self._transport.call("DELETE", f"{self._base}/", decode=_codec.model(models.Welcome), timeout=timeout)

    def welcome_patch(self, *, timeout: float | None = None) -> models.Welcome:
        """Say where to begin."""
        return self._transport.call("PATCH", f"{self._base}/", decode=_codec.model(models.Welcome), timeout=timeout)

    def welcome_post(self, *, timeout: float | None = None) -> models.Welcome:
        """Say where to begin."""
        return self._transport.call("POST", f"{self._base}/", decode=_codec.model(models.Welcome), timeout=timeout)

    def welcome_put(self, *, timeout: float | None = None) -> models.Welcome:
        """Say where to begin."""
        return self._transport.call("PUT", f"{self._base}/", decode=_codec.model(models.Welcome), timeout=timeout)

    def write_file(self, path: str, body: models.FileRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Success:
        """Write a file or make a directory. A file is written whole or not at all, and its missing parents are made. Large files and those that are not text go as multipart/form-data."""
        return self._transport.call("PUT", f"{self._base}/filesystem/{_codec.file_path(path)}", body=body, decode=_codec.model(models.Success), timeout=timeout)

    def write_process_input(self, id: str, content: bytes, *, timeout: float | None = None) -> models.Success:
        """Write to the standard input of a process. The type of the body does not matter. If this fails, the header Doze-Unwritten has the number of bytes, from the end, that the process did not take."""
        return self._transport.call("POST", f"{self._base}/process/{_codec.segment(id)}/stdin", content=content, decode=_codec.model(models.Success), timeout=timeout)

    def write_tree(self, path: str, body: models.TreeRequest | Mapping[str, Any], *, timeout: float | None = None) -> models.Directory:
        """Write many files at once. The directory is made if it is missing. Names lead nowhere but below it."""
        return self._transport.call("PUT", f"{self._base}/filesystem/tree/{_codec.file_path(path)}", body=body, decode=_codec.model(models.Directory), timeout=timeout)
