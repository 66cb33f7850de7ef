"""The sidecar of ``docs/sidecar.md``: taken by Kubernetes, by "restricted" and by the program's own reader of flags."""

from typing import Any

import pytest
import yaml

from discovery import __version__
from discovery.client.heartbeat import DEREGISTER_SECS, LAST_POST_SECS
from discovery.registrations import encode, parse
from discovery.settings import RegisterSettings, read_register
from tests.charts import pod_security, schemas
from tests.charts.rendered import objects_of
from tests.documents import Block, read, steps

FIELDS = {"metadata.namespace": "prod", "metadata.labels['pod-template-hash']": "7d9f8c6b5"}


def block(word: str) -> Any:
    blocks = [step for step in steps(read("docs/sidecar.md")) if isinstance(step, Block) and word in step.words]
    assert len(blocks) == 1
    return blocks[0].text


def deployment() -> Any:
    (found,) = objects_of(block("pod"))
    return found


def with_several_relays() -> Any:
    """The same Deployment with the other sidecar in it, and more than one pod."""
    found = deployment()
    (sidecar,) = yaml.safe_load(block("containers"))
    found["spec"]["replicas"] = 2
    found["spec"]["template"]["spec"]["containers"][1] = sidecar
    return found


DEPLOYMENTS = pytest.mark.parametrize("found", [deployment(), with_several_relays()], ids=["one pod", "several pods"])


def sidecar_of(found: Any) -> Any:
    sidecar = found["spec"]["template"]["spec"]["containers"][1]
    assert sidecar["name"] == "register"
    return sidecar


def settings_of(found: Any) -> RegisterSettings:
    """What the program makes of the words and variables of the container."""
    sidecar = sidecar_of(found)
    command, *words = sidecar["args"]
    assert command == "register", "the image's entry point is the program, and this its command"
    variables = {each["name"]: FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in sidecar["env"]}
    return read_register(words, variables)


@DEPLOYMENTS
def test_kubernetes_takes_it(found: Any) -> None:
    for version in ("1.28", schemas.versions()[-1]):
        assert schemas.faults(found, version) == []
    assert pod_security.faults(found["spec"]["template"]) == []


@DEPLOYMENTS
def test_the_program_takes_its_words(found: Any) -> None:
    settings = settings_of(found)
    assert settings.warnings == ()
    assert (settings.registration.namespace, settings.registration.dgd_name) == ("prod", "llama-70b")
    assert settings.url == ("http://discovery.discovery:8080",)


def test_one_pod_deregisters_and_several_leave_the_pool_to_each_other() -> None:
    assert settings_of(deployment()).keep_on_exit is False
    assert settings_of(with_several_relays()).keep_on_exit is True


def test_the_service_takes_what_it_registers() -> None:
    registration = parse(encode(settings_of(deployment()).registration))
    assert registration.instance_id == FIELDS["metadata.labels['pod-template-hash']"]
    assert registration.capabilities == ("chat", "tools")
    assert [(each.resource, each.quantity) for each in registration.capacity] == [("nvidia.com/gpu", 16)]
    assert registration.relays == ("http://llama-70b-pool-relay.prod:5561",)
    assert registration.frontends == ("http://llama-70b-frontend.prod:8000",)


def test_the_pod_waits_until_it_has_deregistered() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > LAST_POST_SECS + DEREGISTER_SECS
    assert pod["enableServiceLinks"] is False
    assert deployment()["spec"]["strategy"] == {"type": "Recreate"}


def test_the_image_is_of_this_version() -> None:
    assert sidecar_of(deployment())["image"].endswith(f":{__version__}")
    assert sidecar_of(with_several_relays())["image"].endswith(f":{__version__}")
