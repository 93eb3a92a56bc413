"""What is refused of queues, cohorts, flavors and workloads beyond the rules of their definitions, as CEL.

Kueue's webhooks refuse it, and so does the embedded API (`kinds.serving.kueue`), in the same words and the same order. What is
wrong is put together as text, one cause after the other, so that a single rule (nothing is wrong) says all of it. Only what API servers
since 1.30 can evaluate is used: lists are gone through by number, since those servers know no other way to a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from makeway.kinds.crds import spec_fields
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.names import QUALIFIED_RULE, SUBDOMAIN_RULE, VALUE_RULE
from makeway.kinds.serving.registry import build
from makeway.kube.arriving import API, Resources, resource_rules

Object = dict[str, Any]
Text = str  # a CEL expression that gives text: what is wrong, or nothing

GROUP: Final = "kueue.x-k8s.io"
LONGEST_LIST: Final = 64  # flavors of a group; of groups and resources there are fewer
MOST_FLAVORS: Final = 256
MOST_PAIRS: Final = 512

_BETWEEN: Final = r"'\u0001'"  # causes, until it is known how many there are
_NUMBERS: Final = "variables.numbers"
_GROUPS: Final = "variables.groups"
_AT_LEAST_0: Final = "must be greater than or equal to 0"
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def queue_policies() -> list[Object]:
    return [
        _policy("makeway-check-cluster-queues", "clusterqueues", _of_cluster_queues()),
        _policy("makeway-check-cohorts", "cohorts", _of_cohorts()),
        _policy("makeway-check-flavors", "resourceflavors", _labels("object.spec", "nodeLabels")),
        _policy("makeway-keep-pod-sets", "workloads", _of_workloads(), ("UPDATE",)),
        *_fields_of_other_versions(),
    ]


# ---- what may be wrong -----------------------------------------------------------------------------


def _of_cluster_queues() -> Text:
    groups = _of_groups("cohort", _first_of("cohortName", "cohort"), lend_at_most_nominal=True)
    return _all(groups, *_sizes(), _selector(), _weight(), _check_flavors())


def _of_cohorts() -> Text:
    parent = _first_of("parentName", "parent")
    return _all(_of_groups("parent", parent, lend_at_most_nominal=False), _weight())


def _of_groups(word: str, parent: str, *, lend_at_most_nominal: bool) -> Text:
    covered, flavor = f"{_GROUPS}[g].coveredResources", f"{_GROUPS}[g].flavors[f]"
    at = "'spec.resourceGroups[' + string(g) + ']"
    resources = _each(
        f"{covered}",
        "r",
        _all(
            _bad_name(f"{at}.coveredResources[' + string(r) + ']'", f"{covered}[r]"),
            _when(
                f"{_before('g')}.exists(h, {covered}[r] in {_GROUPS}[h].coveredResources)"
                f" || {_before('r')}.exists(q, {covered}[q] == {covered}[r])",
                _duplicate(f"{at}.coveredResources[' + string(r) + ']'", f"{covered}[r]"),
            ),
        ),
    )
    here = f"{at}.flavors[' + string(f) + ']"
    quotas = _each(
        f"{flavor}.resources",
        "r",
        _quota(
            f"{flavor}.resources[r]",
            f"{covered}[r]",
            f"{here}.resources[' + string(r) + ']",
            f"must be nil when {word} is empty",
            parent,
            lend_at_most_nominal=lend_at_most_nominal,
        ),
    )
    twice = _when(
        f"{_before('g')}.exists(h, {_GROUPS}[h].flavors.exists(other, other.name == {flavor}.name))"
        f" || {_before('f')}.exists(e, {_GROUPS}[g].flavors[e].name == {flavor}.name)",
        _duplicate(f"{here}.name'", f"{flavor}.name"),
    )
    flavors = _each(f"{_GROUPS}[g].flavors", "f", _all(quotas, twice))
    return _each(_GROUPS, "g", _all(resources, flavors))


def _quota(
    given: str, covered: str, at: str, no_parent: str, parent: str, *, lend_at_most_nominal: bool
) -> Text:
    def below_0(field: str) -> Text:
        amount = f"{given}.{field}"
        negative = f"{_amount(amount)}.isLessThan(quantity('0'))"
        return _when(negative, _invalid(f"{at}.{field}'", amount, _AT_LEAST_0))

    def limit(field: str) -> Text:
        amount = f"{given}.{field}"
        more = f"{_amount(amount)}.isGreaterThan({_amount(f'{given}.nominalQuota')})"
        too_much = (
            _when(
                more,
                _invalid(
                    f"{at}.{field}'", amount, "must be less than or equal to the nominalQuota"
                ),
            )
            if lend_at_most_nominal and field == "lendingLimit"
            else "''"
        )
        alone = _invalid(f"{at}.{field}'", amount, no_parent)
        return _when(
            f"has({amount})",
            _all(below_0(field), f"({parent} == '' ? {alone} : {too_much})"),
        )

    name = f"{given}.name"
    return _all(
        _when(
            f"{name} != {covered}",
            _invalid(f"{at}.name'", name, "must match the name in coveredResources"),
        ),
        below_0("nominalQuota"),
        limit("borrowingLimit"),
        limit("lendingLimit"),
    )


def _sizes() -> Iterator[Text]:
    for field, what in (("flavors", "flavors"), ("coveredResources", "covered resources")):
        count = f"{_GROUPS}.map(g, size(g.{field})).sum()"
        why = f"total number of {what} across all resourceGroups must be ≤ {MOST_FLAVORS}, got "
        yield _when(f"{count} > {MOST_FLAVORS}", f"'spec: Invalid value: {why}' + string({count})")
    pairs = f"size({_GROUPS}[g].flavors) * size({_GROUPS}[g].coveredResources)"
    why = f"number of flavor-resource combinations in a resourceGroup must be ≤ {MOST_PAIRS}, got "
    said = f"'spec.resourceGroups[' + string(g) + ']: Invalid value: {why}' + string({pairs})"
    yield _each(_GROUPS, "g", _when(f"{pairs} > {MOST_PAIRS}", said))


def _selector() -> Text:
    selector = "object.spec.namespaceSelector"
    term = f"{selector}.matchExpressions[m]"
    at = "'spec.namespaceSelector.matchExpressions[' + string(m) + ']"
    none = f"(!has({term}.values) || size({term}.values) == 0)"
    wrong = _all(
        _when(
            f"!({term}.operator in {list(_OPERATORS)})",
            _invalid(f"{at}.operator'", f"{term}.operator", "not a valid selector operator"),
        ),
        _when(
            f"{term}.operator in {list(_OPERATORS[:2])} && {none}",
            f"{at}.values: Required value: must be specified when `operator` is \\'In\\' or \\'NotIn\\''",
        ),
        _when(
            f"{term}.operator in {list(_OPERATORS[2:])} && !{none}",
            f"{at}.values: Forbidden: may not be specified when `operator` is"
            " \\'Exists\\' or \\'DoesNotExist\\''",
        ),
    )
    terms = _when(
        f"has({selector}.matchExpressions)", _each(f"{selector}.matchExpressions", "m", wrong)
    )
    return _when(f"has({selector})", _all(terms, _labels(selector, "matchLabels")))


def _weight() -> Text:
    weight = "object.spec.fairSharing.weight"
    tiny = f"{_amount(weight)}.isGreaterThan(quantity('0')) && !{_amount(weight)}.isGreaterThan(quantity('1n'))"
    at = "'spec.fairSharing'"
    return _when(
        f"has(object.spec.fairSharing) && has({weight})",
        _all(
            _when(
                f"{_amount(weight)}.isLessThan(quantity('0'))", _invalid(at, weight, _AT_LEAST_0)
            ),
            _when(tiny, _invalid(at, weight, "When not 0, weight must be > 10e-9")),
        ),
    )


def _check_flavors() -> Text:
    """A check may be asked for some of the queue's own flavors only."""
    strategy = "object.spec.admissionChecksStrategy"
    flavor = f"{strategy}.admissionChecks[c].onFlavors[f]"
    known = f"{_GROUPS}.exists(g, g.flavors.exists(own, own.name == {flavor}))"
    names = f"{_GROUPS}.map(g, g.flavors.map(own, '\"' + own.name + '\"').join(', ')).join(', ')"
    at = f"'{strategy.removeprefix('object.')}.admissionChecks[' + string(c) + '].onFlavors[' + string(f) + ']"
    said = f"{at}: Unsupported value: \"' + {flavor} + '\": supported values: ' + {names}"
    checks = _each(
        f"{strategy}.admissionChecks",
        "c",
        _when(
            f"has({strategy}.admissionChecks[c].onFlavors)",
            _each(f"{strategy}.admissionChecks[c].onFlavors", "f", _when(f"!{known}", said)),
        ),
    )
    return _when(f"has({strategy}) && has({strategy}.admissionChecks)", checks)


def _of_workloads() -> Text:
    """What holds quota keeps its shape. Unlike Kueue's words these do not end in the whole pod set: CEL cannot write it out."""
    is_, was = "object.spec.podSets", "oldObject.spec.podSets"
    holds = (
        "has(oldObject.status) && has(oldObject.status.conditions) && oldObject.status.conditions.exists(c,"
        " c.type == 'QuotaReserved' && c.status == 'True')"
    )
    changed = _each(
        was,
        "p",
        _when(
            f"p < size({is_}) && {is_}[p] != {was}[p]",
            "'spec.podSets.' + string(p) + ': Invalid value: field is immutable'",
        ),
    )
    count = _when(
        f"size({is_}) != size({was})", "'spec.podSets: Invalid value: field is immutable'"
    )
    return _when(holds, _all(changed, count))


def _fields_of_other_versions() -> Iterator[Object]:
    """One definition carries the fields of all versions; a field that the version does not have is a mistake of its writer.
    Workloads are written by programs, and by the thousand.
    """
    for kind in build():
        by_hand = kind.group == GROUP and kind.kind != "Workload"
        if by_hand and (wrong := _foreign_fields(kind)):
            name = f"makeway-check-fields-{kind.plural}"
            yield _policy(name, kind.plural, _all(*wrong), ("CREATE",))


def _foreign_fields(kind: Kind) -> list[Text]:
    own = {version.name: spec_fields(version) for version in kind.versions}
    known = frozenset().union(*own.values())
    return [
        _when(
            f"request.requestKind.version == '{version}' && has(object.spec.{field})",
            f'\'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}:'
            f' strict decoding error: unknown field "spec.{field}"\'',
        )
        for version in own
        for field in sorted(known - own[version])
    ]


# ---- in CEL ----------------------------------------------------------------------------------------


def _each(items: str, number: str, wrong: Text) -> Text:
    """What is wrong with any of the items; `wrong` names one by its number."""
    numbers = f"{_NUMBERS}.filter({number}, {number} < size({items}))"
    return f"{numbers}.map({number}, {wrong}).filter(t, t != '').join({_BETWEEN})"


def _before(number: str) -> str:
    return f"{_NUMBERS}.filter(b, b < {number})"


def _all(*wrong: Text) -> Text:
    if len(wrong) == 1:
        return wrong[0]
    return f"[{', '.join(wrong)}].filter(t, t != '').join({_BETWEEN})"


def _when(condition: str, wrong: Text) -> Text:
    return f"({condition} ? {wrong} : '')"


def _amount(value: str) -> str:
    return f"quantity(string({value}))"


def _invalid(at: Text, value: str, why: str) -> Text:
    return f"{at} + ': Invalid value: \"' + string({value}) + '\": {_quoted(why)}'"


def _duplicate(at: Text, value: str) -> Text:
    return f"{at} + ': Duplicate value: \"' + {value} + '\"'"


def _labels(of: str, field: str) -> Text:
    """The keys and values of a map of labels."""
    labels, at = f"{of}.{field}", f"'{of.removeprefix('object.')}.{field}'"
    wrong = _all(_bad_name(at, "k"), _bad_value(at, f"{labels}[k]"))
    return _when(f"has({labels})", f"{labels}.map(k, {wrong}).filter(t, t != '').join({_BETWEEN})")


def _bad_name(at: Text, name: str) -> Text:
    subdomain = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    last = f"{name}.split('/')[size({name}.split('/')) - 1]"
    prefix = f"{name}.split('/')[0]"
    return _all(
        _when(
            f"{name}.contains('/') && !{prefix}.matches('^{subdomain}$')",
            _invalid(at, name, f"prefix part {SUBDOMAIN_RULE}"),
        ),
        _when(f"{last} == ''", _invalid(at, name, "name part must be non-empty")),
        _when(f"size({last}) > 63", _invalid(at, name, "name part must be no more than 63 bytes")),
        _when(
            f"!{last}.matches('^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$')",
            _invalid(at, name, QUALIFIED_RULE),
        ),
    )


def _bad_value(at: Text, value: str) -> Text:
    return _all(
        _when(f"size({value}) > 63", _invalid(at, value, "must be no more than 63 bytes")),
        _when(
            f"!{value}.matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",
            _invalid(at, value, VALUE_RULE),
        ),
    )


def _quoted(text: str) -> str:
    """As part of a text in single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _first_of(*fields: str) -> str:
    """Whichever of these the object has, or nothing."""
    said = "''"
    for field in reversed(fields):
        said = f"(has(object.spec.{field}) ? object.spec.{field} : {said})"
    return said


def _policy(
    name: str, plural: str, wrong: Text, operations: tuple[str, ...] = ("CREATE", "UPDATE")
) -> Object:
    resources: Resources = ((GROUP, plural),)
    return {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": resource_rules(resources, operations)},
            "matchConditions": [
                {
                    # Who only takes a finalizer off need not mend what was wrong before.
                    "name": "spec-is-new",
                    "expression": "oldObject == null || object.spec != oldObject.spec",
                }
            ],
            "failurePolicy": "Ignore",
            "variables": [
                {"name": "numbers", "expression": str(list(range(LONGEST_LIST)))},
                {
                    "name": "groups",
                    "expression": "has(object.spec.resourceGroups) ? object.spec.resourceGroups : []",
                },
                {"name": "wrong", "expression": wrong},
            ],
            "validations": [
                {
                    "expression": "variables.wrong == ''",
                    "messageExpression": f"variables.wrong.contains({_BETWEEN})"
                    f" ? '[' + variables.wrong.replace({_BETWEEN}, ', ') + ']' : variables.wrong",
                    "reason": "Forbidden",
                }
            ],
        },
    }
