//! Tests of rendering.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use muster_topics::{diagnostic::Diagnostic, heartbeat::Facts};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::port_lease::EndpointWiring;

fn values() -> RenderValues {
    let facts = Facts { os: "Debian 13".to_owned(), cpus: 4, memory_bytes: 8 << 30, ..Facts::default() };
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let vars = json!({
        "colour": "blue", "limit": 8, "sites": ["a", "b"], "big": u64::MAX, "share": 0.5, "tls": {"on": true},
        "odd-name": "odd", "html": "<a & b>",
    });
    let wiring: EndpointWiring = serde_json::from_value(json!({
        "endpoints": [{"name": "web", "address": "::1", "port": 8080}, {"name": "db", "address": "::1", "port": 1}],
        "connectors": [{"name": "db", "address": "10.0.0.7", "port": 5432, "unit": "shop/db"}],
    }))
    .unwrap();
    RenderValues::of_host(("4f", "shop-7"), &facts, [label("site", "berlin"), label("shop-no", "7")])
        .with_vars(vars.as_object().unwrap().clone())
        .with_deployment("shop/tills", 3)
        .with_unit(&"shop/till".parse().unwrap())
        .with_endpoints(&wiring)
}

fn rendered(template: &str) -> Result<String, RenderFault> {
    let secret = |name: &str| (name == "db").then(|| "hunter2-hunter2".to_owned());
    render("a.html", template, &values(), &secret)
}

#[track_caller]
fn check(template: &str, result: &str) {
    assert_eq!(rendered(template).as_deref(), Ok(result), "{template}");
}

#[track_caller]
fn refused(template: &str, line: Option<usize>, parts: &[&str]) {
    let fault = rendered(template).unwrap_err();
    assert_eq!(fault.line, line, "{fault}");
    let text = format!("{fault} {}", fault.hint.as_deref().unwrap_or_default());
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert!(text.starts_with("a.html") && !text.contains("hunter2") && text.len() < 1_000, "{text}");
}

#[test]
fn each_kind_of_value_is_rendered() {
    for (template, result) in [
        ("", ""),
        ("no template: { } {a} ${HOME}\n", "no template: { } {a} ${HOME}\n"),
        ("{{ host.id }} {{ host.hostname }}", "4f shop-7"),
        ("{{ fact.os }}/{{ fact.cpus * 2 }}/{{ fact.memory_bytes // 1024 ** 3 }}", "Debian 13/8/8"),
        ("{{ label.site }}{{ label['shop-no'] }}", "berlin7"),
        ("{{ realm }} {{ instance.unit }} {{ instance.name }}", "shop shop/till till"),
        ("{{ deployment.name }}@{{ deployment.version }}", "shop/tills@3"),
        ("{{ vars.colour }} {{ vars['odd-name'] }} {{ vars.tls.on }}", "blue odd true"),
        ("{{ vars.big }} {{ vars.share }} {{ vars.limit + 1 }}", "18446744073709551615 0.5 9"),
        ("{% for site in vars.sites %}{{ site }},{% endfor %}", "a,b,"),
        ("{{ none }} {{ vars.sites|join(',') }}", "null a,b"),
        ("{{ vars.sites|tojson }}{{ vars.tls|tojson }}", r#"["a", "b"]{"on": true}"#),
        // What the unit needs goes before what it provides.
        ("{{ endpoint('db') }} {{ endpoint('web') }} {{ endpoint('web').port + 1 }}", "10.0.0.7:5432 [::1]:8080 8081"),
        ("{{ endpoint('db').address }}", "10.0.0.7"),
        ("pg://u:{{ secret('db') }}@h", "pg://u:hunter2-hunter2@h"),
        ("{% if vars.colour == 'blue' %}{{ secret(\"db\")|upper }}{% endif %}", "HUNTER2-HUNTER2"),
        // Nothing is escaped, whatever the name of the template.
        ("{{ vars.html }}", "<a & b>"),
        ("{{ vars.nothing|default('none') }}{% if vars.nothing is defined %}!{% endif %}", "none"),
        // A line with a statement alone leaves none, and the last newline stays.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc\n"),
        ("{# {{ secret('x') }} #}{% raw %}{{ hots }}{{ secret(1) }}{% endraw %}", "{{ hots }}{{ secret(1) }}"),
        ("{% if true %}{% set a = 1 %}{% endif %}{{ a }}", "1"),
        ("{% set n, m = 1, 2 %}{{ n + m }}{{ {'secret': 3}.secret }}", "33"),
    ] {
        check(template, result);
    }
}

#[test]
fn mistake_is_named_with_its_line_and_a_hint() {
    for (template, line, parts) in [
        ("a\n{{ hots.id }}", Some(2), &["line 2: unknown name hots", "did you mean `host`"][..]),
        ("{{ host.name }}", Some(1), &["unknown name host.name", "`hostname`"]),
        ("\n\n{{ fact.cpu }}", Some(3), &["unknown name fact.cpu", "`cpus`"]),
        ("{{ realm.name }}", Some(1), &["realm is a text"]),
        ("{{ vars.color }}", Some(1), &["vars.color has no value here", "`colour`", "muster var set color VALUE"]),
        ("{% if vars.nothing %}{% endif %}", Some(1), &["vars.nothing has no value", "known are"]),
        ("{{ vars['color']|upper }}", Some(1), &["vars['color'] has no value", "`colour`"]),
        ("{{ label.sight }}", Some(1), &["label.sight has no value", "`site`", "muster host label HOST sight=VALUE"]),
        ("{{ vars.tls.of }}", Some(1), &["vars.tls.of has no value"]),
        ("\n{{ endpoint('dB') }}", Some(2), &["the unit has no endpoint dB", "`db`"]),
        ("{{ endpont('db') }}", Some(1), &["unknown name endpont", "`endpoint`"]),
        ("\n{{ secret('api') }}", Some(2), &["the secret api was not sent", "muster secret set REALM/api"]),
        ("{{ secret(vars.colour) }}", Some(1), &["must be a literal text", "secret('NAME')"]),
        ("{% set s = secret %}{{ s('db') }}", Some(1), &["must be a literal text"]),
        ("{{ secret('No Name') }}", Some(1), &["the secret's name"]),
        ("{% set vars = vars %}{{ vars.colour }}", Some(1), &["vars is reserved"]),
        ("{% for host in [1] %}{% endfor %}", Some(1), &["host is reserved"]),
        ("{% with fact = 1 %}{% endwith %}", Some(1), &["fact is reserved"]),
        ("a\n{{ 'x'|uper }}", Some(2), &["filter uper is unknown"]),
        ("a\n{{ vars.", Some(2), &["unexpected end of input"]),
        ("a\n{% if %}", Some(2), &["unexpected"]),
        ("{% include '/etc/passwd' %}", Some(1), &["unknown statement include"]),
        ("{% import '/etc/passwd' as a %}", Some(1), &["unknown statement import"]),
        ("{{ vars.colour + 1 }}", Some(1), &["unsupported types string and number"]),
        ("{{ secret('db') ** 2 }}{{ secret('db')|int }}", Some(1), &[]),
    ] {
        refused(template, line, parts);
    }
    let none = RenderValues::of_host(("4f", "h"), &Facts::default(), []).with_unit(&"a/b".parse().unwrap());
    let of = |template| Diagnostic::of(&render("t", template, &none, &|_| None).unwrap_err());
    let told = |cause: &str, hint| Diagnostic::new(cause).with_hint(hint);
    assert_eq!(
        of("{{ deployment.name }}"),
        told("t, line 1: deployment has no value here", "the unit does not belong to a deployment")
    );
    assert_eq!(of("{{ vars.a }}"), told("t, line 1: vars.a has no value here", "set it: `muster var set a VALUE`"));
    assert!(of("{{ endpoint('a') }}").hint.unwrap().contains("`provides` and `needs`"));
}

/// Checks that a hostile template is a fault, and soon.
#[track_caller]
fn harmless(template: &str) {
    let begun = Instant::now();
    let ended = rendered(template);
    let head: String = template.chars().take(60).collect();
    assert!(begun.elapsed() < Duration::from_secs(10), "{head}");
    assert!(ended.as_ref().is_err_and(|fault| fault.to_string().len() < 1_000), "{head}: {ended:.300?}");
}

#[test]
fn endless_template_is_ended() {
    harmless(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    );
    harmless("{% for a in range(99999) %}{{ range(99999)|list|sort|length }}{% endfor %}");
    refused("\n{% for a in [1] recursive %}{{ loop([a]) }}{% endfor %}", Some(2), &["a loop cannot be recursive"]);
}

#[test]
fn huge_result_is_refused_before_it_is_made() {
    harmless("{% set a = 'a' %}{{ a * 1000000000 }}");
    harmless("{% for a in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}");
    harmless(&format!("{{% set a = 'aaaaaaaaaaaaaaaa' %}}{}{{{{ a }}}}", "{% set a = a ~ a %}".repeat(40)));
    harmless(&format!("{{% set a = ['aaaaaaaaaaaaaaaa'] %}}{}{{{{ a }}}}", "{% set a = a + a %}".repeat(40)));
    harmless(&format!("{{% set a = [1] %}}{}{{{{ a ~ '' }}}}", "{% set a = [a, a] %}".repeat(40)));
    harmless(&format!(
        "{}{}{}",
        "{% for a in [[1]] %}",
        "{% for a in [[a, a]] %}".repeat(40),
        "{% endfor %}".repeat(41)
    ));
    harmless(&format!("{{% set a = vars.sites %}}{}{{{{ a ~ '' }}}}", "{% set a = a + a %}".repeat(20)));
    harmless("{{ vars.sites * 99999999 ~ '' }}");
    for repeating in [
        "{{ [0] * 99999999 ~ '' }}",
        "{{ 99999999 * [0] }}",
        "{% set a = 'x'|list %}{{ (a * 99999999) == 1 }}",
        "{{ 'a' * 99999999 ~ 'a' * 99999999 }}",
        "{{ 99999999 * 'a' }}",
        "{{ ('a') * 99999999 }}",
        "{{ 99999999 * ('a') }}",
        "{{ ((1, 1)) * 99999999 }}",
        "{{ 'ab'[0:] * 99999999 }}",
    ] {
        refused(repeating, Some(1), &["only numbers can be multiplied"]);
    }
    check("{{ fact.cpus * 2 ~ ' threads' }}{{ vars.no|default('x') ~ (fact.cpus - 1) * 2 }}", "8 threadsx6");
    check("{{ (fact.cpus * 1.5)|int }} {{ 2 ** 3 * 2 }} {% set n = vars.limit * 2 %}{{ n * n + n }}", "6 16 272");
    check("{% for n in [1, 2] %}{% set m = n + 1 %}{{ m }}{% endfor %}{{ 'a' in ['a', 'b'] }}", "23true");
    harmless("{% set a = 'a' %}{% set a = a * 9999 %}{{ a|replace('a', a)|replace('a', a) }}");
    harmless(
        "{% set a %}{% for a in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}{{ a|length }}",
    );
    harmless("{{ '%999999999d'|format(1) }}{{ 'a'|indent(999999999) }}");
    refused(&"a".repeat(TEMPLATE_MAX_BYTES + 1), None, &["bytes; at most"]);
    let just = "{% set a = 'a' %}{{ a * 1048576 }}";
    assert_eq!(rendered(just).unwrap().len(), RESULT_MAX_BYTES);
    refused("{% set a = 'a' %}{{ a * 1048577 }}", None, &["its result has more than 1048576 bytes"]);
}

#[test]
fn long_rows_of_operators_are_refused_before_they_are_folded() {
    for row in ["1~", "vars.limit~1~", "1==1 and ", "[1]==[1] and ", "1 if 1 else ", "1+-", "'a' in 'a' or "] {
        let tag = format!("{{{{ {}1 }}}}", row.repeat(30_000 / row.len()));
        refused(&format!("\n{tag}"), Some(2), &["too many operators", "write several shorter tags"]);
    }
    let tag = format!("{{{{ {}1 }}}}", "1~".repeat(400));
    refused(&tag.repeat(60), Some(1), &["too many operators"]);
    check(&format!("{{{{ {}1 }}}}", "vars.limit~1~".repeat(100)), &format!("{}1", "81".repeat(100)));
    let list = format!("{{{{ [{}][3] }}}}", "7, ".repeat(10_000));
    check(&list, "7");
    check(&"{{ vars.limit ~ '-' ~ 1 }}".repeat(1_000), &"8-1".repeat(1_000));
}

#[test]
fn deep_nesting_overflows_no_stack() {
    let of_length = |part: &str| part.repeat((TEMPLATE_MAX_BYTES - 200) / part.len());
    let on = |begin: &str, part: &str, end: &str| drop(rendered(&format!("{begin}{}{end}", of_length(part))));
    on("{{ vars", ".a", " }}");
    on("{{ vars", "[0]", " }}");
    on("{{ 1", "+1", " }}");
    on("{{ vars.limit", "+vars.limit", " }}");
    on("{{ 'a'", "|e", " }}");
    on("{{ ", "not ", "1 }}");
    on("{{ ", "-", "1 }}");
    on("{{ ", "1 if 1 else ", "1 }}");
    on("{{ 1", " and 1", " }}");
    on("{{ 1", "==1", " }}");
    on("{{ ", "(", "");
    on("{{ ", "[", "");
    on("{% if 1 %}", "{%elif 1%}", "{% endif %}");
    on("", "{%if 1%}", "");
    on("", "{%for a in b%}", "");
    on("{% set a=[1] %}", "{%set a=[a]%}", "{{ a }}{{ a|tojson }}{{ a == [a] }}");
    on("{% set a=[1] %}", "{%set a=[[[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]]]%}", "{{ a }}{{ a|pprint }}");
    refused("a\n{{ host }}", Some(2), &["a map is not a text", "use one of its parts"]);
    refused("{{ vars.sites }}", Some(1), &["a list is not a text", "|join(',')"]);
    refused("{% set n = namespace(a=1) %}", Some(1), &["unknown name namespace"]);
    refused("{{ debug() }}", Some(1), &["unknown name debug"]);
    refused("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", Some(1), &["unknown statement macro"]);
}

#[test]
fn names_are_found_without_values() {
    let of = |template: &str| names("t", template).unwrap();
    let texts = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(" ");
    for (template, found) in [
        ("", ""),
        ("{{ vars.a.b }}{% if fact.cpus > 2 %}{{ vars.c|upper }}{% endif %}", "fact.cpus vars.a vars.c"),
        ("{{ vars[label.site] }}{{ vars.a }}", "label.site vars"),
        ("{% for name in vars %}{{ vars[name] }}{% endfor %}{{ host.id }}", "host.id vars"),
        ("{% set all = fact %}{{ all.cpus }}", "fact"),
        ("{{ f }}{% set f = realm %}", "realm"),
        ("{% with f = deployment.name %}{{ f }}{% endwith %}", "deployment.name"),
    ] {
        assert_eq!(texts(of(template).values), found, "{template}");
    }
    let all =
        of("{{ secret('a')|upper }}{{- secret( \"b\" ) -}}{% set x = '}}' ~ secret('c') %}{{ endpoint('e').port }}");
    assert_eq!((texts(all.secrets), texts(all.endpoints)), ("a b c".to_owned(), "e".to_owned()));
    let none = of(
        "{# {{ secret('a') }} #}{% raw %}{{ secret('b') }}{% endraw %}{{ \"secret('c')\" }}{{ {'secret': 1}.secret }}",
    );
    assert_eq!(texts(none.secrets), "");
}

#[test]
fn chosen_values_render_the_same() {
    let all = values();
    for template in [
        "{{ vars.colour }}{{ fact.cpus }}",
        "{{ vars.nothing|default('none') }}{{ vars.colour }}",
        "{% for name in vars|sort %}{{ name }}={{ vars[name] }} {% endfor %}",
        "{{ label|length }}{{ label.site }}{{ deployment.version }}{{ realm }}",
    ] {
        let chosen = all.chosen(&names("t", template).unwrap().values);
        let of = |values| render("t", template, values, &|_| None);
        assert_eq!(of(&RenderValues::of_chosen(&chosen)), of(&all), "{template}");
    }
    let chosen = all.chosen(&["vars.colour".to_owned(), "vars.nothing".to_owned(), "hots.id".to_owned()].into());
    assert_eq!(serde_json::to_value(chosen).unwrap(), json!({"vars.colour": "blue"}));
}

proptest! {
    #[test]
    fn garbage_is_a_fault_or_a_text(template in proptest::collection::vec(prop_oneof![
        Just("{{".to_owned()), Just("}}".to_owned()), Just("{%".to_owned()), Just("%}".to_owned()), Just("{#".to_owned()),
        Just("#}".to_owned()), Just(" set ".to_owned()), Just(" for ".to_owned()), Just(" in ".to_owned()),
        Just("if ".to_owned()), Just("endif".to_owned()), Just("raw".to_owned()), Just("endraw".to_owned()),
        Just(" vars".to_owned()), Just(".a".to_owned()), Just("secret".to_owned()), Just("('db')".to_owned()),
        Just("'".to_owned()), Just("\"".to_owned()), Just("\\".to_owned()), Just("[".to_owned()), Just("(".to_owned()),
        Just("=".to_owned()), Just("-".to_owned()), Just("|".to_owned()), Just("\n".to_owned()), "\\PC{0,4}",
    ], 0..40)) {
        let template = template.concat();
        if let Err(fault) = rendered(&template) {
            prop_assert!(fault.to_string().len() < 1_000);
            prop_assert!(fault.line.is_none_or(|line| line <= 1 + template.matches('\n').count()));
            prop_assert!(!fault.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn text_without_tags_is_itself(text in "[a-z \n}%#$\\\\'\"é]{0,80}") {
        prop_assert_eq!(rendered(&text), Ok(text));
    }
}
