"""Which places a YAML may name, and how the environment fills them in."""

from collections.abc import Callable

import pytest

from training.errors import Problem, SpecError
from training.spec import PipelineSpec, freeze, resolve_uris
from training.spec.uris import resolve_place

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

R = "search_ranking"
URI = '"${SHOP_URI}/clicks"'

FORBIDDEN = [
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "/etc/passwd",
    "clicks",
    "../clicks",
    "~/clicks",
    "http://169.254.169.254/latest",
    "https://localhost/x",
    "http://[::1]/x",
    "ftp://host/x",
    "jdbc:postgresql://host/x",
    "s3://",
    "s3:///key",
    "s3:bucket/key",
    "S3://bucket/key",
    "s3://user:pass@bucket/key",
    "s3://bucket@evil/key",
    "s3://bucket/../other",
    "s3://bucket/a/..",
    "s3://bucket/%2e%2e/other",
    "s3://bucket/%2E./other",
    "s3://bucket/%252e%252e/other",
    "s3://bucket/..%2fother",
    "s3://bucket/%25252e%25252e%25252fother",
    "s3://bucket/..%5cother",
    "s3://bucket/a\\\\b",
    "s3://bucket/a#b",
    "s3://bucket/a?endpoint=http://evil",
    "s3://bucket/a%3fb",
    "s3://bucket/a%23b",
    "s3://bucket/a b",
    "s3://bucket/a%00b",
    "${SHOP_URI}/../other",
    "${SHOP_URI}/%2e%2e/other",
    "${SHOP_URI}/a?b",
    "${SHOP_URI}clicks",
    "${SHOP_URI}${OTHER_URI}",
    "x${SHOP_URI}/clicks",
    "${HOME}/clicks",
    "${AWS_SECRET_ACCESS_KEY}/x",
    "${shop_URI}/x",
    "$SHOP_URI/clicks",
    "${SHOP_URI}/$(id)",
    "{{ var.value.x }}/clicks",
    "${MLFLOW_BACKEND_STORE_URI}/x",
    "${AIRFLOW_CONN_SLACK_URI}/x",
    "${NIGHTSHIFT_STORE_URI}/x",
    "${AWS_CONTAINER_CREDENTIALS_RELATIVE_URI}/x",
    "${AZURE_STORAGE_URI}",
    "${GOOGLE_URI}",
    # An address of a machine in each way of writing one, and what no cloud allows as a name.
    "s3://169.254.169.254/x",
    "s3://2852039166/x",
    "s3://0xa9fea9fe/x",
    "s3://0xa9.0xfe.0xa9.0xfe/x",
    "gs://169.254.169.254",
    "az://16925416925/x",
    "s3://Bucket/x",
    "s3://a/x",
    "s3://a..b/x",
    "s3://bucket-/x",
    "s3://under_score/x",
    "az://two--hyphens/x",
    "az://dots.in.it/x",
]


@pytest.mark.parametrize("uri", FORBIDDEN)
def test_place_that_a_yaml_may_not_name_is_refused(refuse: Refuse, uri: str) -> None:
    (problem,) = refuse(R, (URI, f'"{uri}"'))
    assert (problem.code, problem.field) == ("uri.forbidden", "data.source.uri")


def test_place_of_a_feature_table_is_checked_too(refuse: Refuse) -> None:
    (problem,) = refuse("flight_delay", ('"${FLIGHTS_URI}/planes.csv"', "/planes.csv"))
    assert (problem.code, problem.field) == ("uri.forbidden", "data.features[1].uri")


@pytest.mark.parametrize("uri", ["s3://bucket/a/b", "gs://b.c-d/x", "az://container", "${SHOP_URI}", "${SHOP_2_URI}/a/b=1"])
def test_object_stores_and_placeholders_are_accepted(accept: Accept, uri: str) -> None:
    assert accept(R, (URI, f'"{uri}"')).data.source.uri == uri


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("/data/shop", "file:///data/shop/clicks"),
        ("/data/shop/", "file:///data/shop/clicks"),
        ("/data/my shop#1", "file:///data/my%20shop%231/clicks"),
        ("/data/../shop", "file:///shop/clicks"),
        ("file:///data/shop", "file:///data/shop/clicks"),
        ("file:///data/my%20shop%231", "file:///data/my%20shop%231/clicks"),
        ("file:///data/my shop", "file:///data/my%20shop/clicks"),
        ("/data/a%20b", "file:///data/a%2520b/clicks"),
        ("file:///data/a%2520b/", "file:///data/a%2520b/clicks"),
        ("s3://bucket/shop/", "s3://bucket/shop/clicks"),
        (" gs://bucket ", "gs://bucket/clicks"),
    ],
)
def test_placeholder_is_filled_in_from_the_environment(ranking: PipelineSpec, value: str, resolved: str) -> None:
    assert resolve_uris(ranking, {"SHOP_URI": value}).data.source.uri == resolved


@pytest.mark.parametrize("place", ["/data/my shop", "file:///data/my%20shop", "file:///data/my shop/"])
@pytest.mark.parametrize("rest", ["/page views/click s.csv", "/page%20views/click%20s.csv"])
def test_path_with_blanks_and_its_uri_are_the_same_place(accept: Accept, place: str, rest: str) -> None:
    spec = accept(R, (URI, f'"${{SHOP_URI}}{rest}"'))
    assert resolve_uris(spec, {"SHOP_URI": place}).data.source.uri == "file:///data/my%20shop/page%20views/click%20s.csv"


def test_blank_is_refused_where_the_variable_names_a_bucket(accept: Accept) -> None:
    spec = accept(R, (URI, '"${SHOP_URI}/page views"'))
    with pytest.raises(SpecError) as caught:
        resolve_uris(spec, {"SHOP_URI": "s3://bucket/shop"})
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == ("uri.forbidden", "'${SHOP_URI}/page views' has ' ', and SHOP_URI names a bucket")


def test_unset_variables_are_all_named_with_what_to_set_them_to(flights: PipelineSpec) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_uris(flights, {"FLIGHTS_URI": " "})
    assert [problem.render("flight_delay") for problem in caught.value.problems] == [
        f"flight_delay: {field}: [uri.unset] the environment variable FLIGHTS_URI is not set as a place of "
        f"data (set FLIGHTS_URI to the place that holds {file}: a folder, or s3://bucket/prefix; on a laptop, "
        "`make start` passes it to the services; elsewhere, name it in NIGHTSHIFT_PLACES too)"
        for field, file in [
            ("data.source.uri", "flights.csv"),
            ("data.features[0].uri", "weather.csv"),
            ("data.features[1].uri", "planes.csv"),
        ]
    ]


NO_PLACES = [
    "shop",
    "http://host/x",
    "s3://user:pass@bucket",
    "file://host/x",
    "s3://bucket/../x",
    "file:///a/%2e%2e/b",
    "s3://bucket/my shop",
]
NO_PLACES += ["file:///", "file:////host/share", "file:///a?b", "file:///a#b", "file:///a%00b", "file:///a%0Ab", "file:///a%ffb"]
NO_PLACES += [
    "s3://169.254.169.254/latest",
    "gs://0xa9fea9fe",
    "/",
    "/a/..",
    "//host/share",
    "/a\nb",
    "/a\x00b",
    "/a\u2028b",
    "/a\udcffb",
    "/" + "a" * 5000,
]


@pytest.mark.parametrize("value", NO_PLACES)
def test_value_that_is_no_place_for_data_is_refused(ranking: PipelineSpec, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_uris(ranking, {"SHOP_URI": value})
    assert caught.value.code == "uri.forbidden"
    (problem,) = caught.value.problems
    assert problem.message == "the environment variable SHOP_URI names no place for data"


def test_webhook_is_filled_in_dropped_when_unset_and_never_frozen(ranking: PipelineSpec) -> None:
    places = {"SHOP_URI": "/shop"}
    resolved = resolve_uris(ranking, places, {"ALERTS_URI": "https://hooks.example.com/T0/secret?x=1"})
    assert resolved.alerts.webhook == "https://hooks.example.com/T0/secret?x=1"
    assert resolve_uris(ranking, places, {}).alerts.webhook is None
    assert "secret" not in str(freeze(resolved))


def test_webhook_that_is_no_address_is_refused_without_showing_it(ranking: PipelineSpec) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_uris(ranking, {"SHOP_URI": "/shop"}, {"ALERTS_URI": "file:///secret"})
    assert (caught.value.code, "secret" in str(caught.value)) == ("uri.forbidden", False)


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "SHOP_URI"])
def test_webhook_is_neither_a_variable_of_others_nor_a_place_of_the_data(refuse: Refuse, name: str) -> None:
    (problem,) = refuse(R, ('"${ALERTS_URI}"', f'"${{{name}}}"'))
    assert (problem.code, problem.field) == ("uri.forbidden", "alerts.webhook")


@pytest.mark.parametrize("name", ["MLFLOW_BACKEND_STORE_URI", "AIRFLOW_CONN_X_URI", "AWS_X_URI"])
def test_variable_of_others_is_refused_by_its_name_before_its_value_is_read(name: str) -> None:
    class Unread(dict[str, str]):
        def get(self, key: str, default: object = None) -> str:  # type: ignore[override]
            raise AssertionError(f"{key} was read")

    with pytest.raises(SpecError):
        resolve_place(f"${{{name}}}/x", "registration.artifact_uri", Unread({name: "/secret"}))


def test_trigger_names_only_the_variables_of_its_pipelines_data() -> None:
    assert resolve_place("${SHOP_URI}/m.ubj", "f", {"SHOP_URI": "/shop"}) == ("file:///shop/m.ubj", "file:///shop")
    with pytest.raises(SpecError) as caught:
        resolve_place("${ALERTS_URI}/m.ubj", "f", {"SHOP_URI": "/shop"})
    assert caught.value.code == "uri.forbidden"
    assert "${SHOP_URI}" in caught.value.problems[0].hint
    assert "/shop" not in str(caught.value)


def test_resolving_twice_changes_nothing(ranking: PipelineSpec) -> None:
    once = resolve_uris(ranking, {"SHOP_URI": "/shop"}, {"ALERTS_URI": "https://alerts.example.com"})
    assert resolve_uris(once, {}, {}) == once
