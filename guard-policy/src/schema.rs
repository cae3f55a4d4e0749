//! The formats as JSON Schema, for editors and other programs. The reader itself does not use them: what it takes is
//! said by its tables of keys, and tests hold both together.

use guard_common::ActionClass;
use serde_json::{Map, Value, json};

use crate::policy::{Autonomy, Limits};

/// What has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The policy file.
    Policy,
    /// The managed policy file.
    Managed,
    /// One request.
    Request,
    /// What became of an earlier request.
    Receipt,
    /// One decision.
    Decision,
    /// One line of the record.
    Audit,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 6] =
        [Self::Policy, Self::Managed, Self::Request, Self::Receipt, Self::Decision, Self::Audit];

    /// Name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Managed => "managed",
            Self::Request => "request",
            Self::Receipt => "receipt",
            Self::Decision => "decision",
            Self::Audit => "audit",
        }
    }
}

/// The schema of a format.
#[must_use]
pub fn of(format: Format) -> Value {
    let mut schema = match format {
        Format::Policy => policy(),
        Format::Managed => managed(),
        Format::Request => request(),
        Format::Receipt => receipt(),
        Format::Decision => decision(),
        Format::Audit => audit(),
    };
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = format.as_str().into();
    schema
}

/// An object with these properties and no other.
fn closed(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn truth() -> Value {
    json!({"type": "boolean"})
}

fn amount(most: u64) -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": most})
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn words(words: &[&str]) -> Value {
    json!({"enum": words})
}

fn class() -> Value {
    words(&ActionClass::ALL.map(ActionClass::as_str))
}

fn autonomy() -> Value {
    words(&Autonomy::ALL.map(Autonomy::as_str))
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}

fn rule() -> Value {
    let named = |items: Value| json!({"type": "array", "minItems": 1, "items": items});
    let constraints = closed(
        json!({
            "paths": named(text()), "refs": named(text()), "hosts": named(text()), "commands": named(text()),
            "max_count": amount(1 << 53), "max_cents": amount(1 << 53), "per": words(&["session", "action"]),
        }),
        &[],
    );
    let properties = json!({
        "id": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"},
        "scope": {"type": "string", "pattern": "^(space|agent|workspace|mode):.+$"},
        "class": class(),
        "command_prefix": text(),
        "effect": words(&["allow", "prompt", "deny"]),
        "level": words(&["advisory", "soft", "strict"]),
        "constraints": constraints,
        "reason": text(),
        "expires_at": time(),
        "provenance": words(&["authored", "remembered", "template"]),
        "match": list(action()),
        "not_match": list(action()),
    });
    let one_subject = json!([{"required": ["class"]}, {"required": ["command_prefix"]}]);
    with(closed(properties, &["id", "effect"]), "oneOf", one_subject)
}

fn limits() -> Value {
    let most = Limits::default();
    closed(
        json!({
            "paths": amount(most.paths), "refs": amount(most.refs), "hosts": amount(most.hosts),
            "commands": amount(most.commands), "string": amount(most.string),
        }),
        &[],
    )
}

fn policy() -> Value {
    let mode = closed(json!({"rules": list(rule()), "deny_commands": list(text())}), &[]);
    let hole = closed(
        json!({"cidr": text(), "ports": {"type": "array", "minItems": 1, "items": amount(65_535)}, "proto": words(&["tcp", "udp"])}),
        &["cidr"],
    );
    let network = json!({
        "deny": list(text()),
        "allow": list(json!({"anyOf": [text(), hole]})),
        "resolvers": words(&["allow", "deny"]),
    });
    closed(
        json!({
            "version": {"const": 1},
            "rules": list(rule()),
            "modes": {"type": "object", "additionalProperties": mode},
            "autonomy": {"type": "object", "additionalProperties": autonomy()},
            "delegation": closed(json!({"max_depth": amount(64)}), &[]),
            "network": closed(network, &[]),
            "limits": limits(),
            "require_mandate": {"const": false},
        }),
        &[],
    )
}

fn managed() -> Value {
    closed(
        json!({
            "version": {"const": 1},
            "rules": list(rule()),
            "delegation": closed(json!({"max_depth": amount(64)}), &[]),
            "network": closed(json!({"deny": list(text()), "allow_holes": truth()}), &[]),
            "limits": limits(),
            "require_mandate": {"const": false},
        }),
        &[],
    )
}

fn action() -> Value {
    closed(
        json!({
            "classes": list(class()), "paths": list(text()), "refs": list(text()), "hosts": list(text()),
            "commands": list(text()), "port": amount(65_535), "proto": words(&["tcp", "udp"]),
            "count": amount(1 << 53), "cents": amount(1 << 53),
        }),
        &[],
    )
}

fn request() -> Value {
    let texts = |keys: &[&str]| {
        let properties = keys.iter().map(|key| ((*key).to_owned(), text()));
        closed(Value::Object(properties.collect::<Map<_, _>>()), &[])
    };
    let source = || words(&["kernel", "parsed", "reported"]);
    let sources = json!({"paths": source(), "refs": source(), "hosts": source(), "commands": source()});
    let units = json!({"type": "object", "additionalProperties": amount(1 << 53)});
    let delegate = json!({
        "to": text(), "chain": list(text()), "autonomy": autonomy(),
        "budget": {"type": "object", "additionalProperties": units},
    });
    closed(
        json!({
            "id": text(),
            "now": time(),
            "principal": texts(&["agent", "session", "workspace", "space", "mode"]),
            "action": action(),
            "sources": closed(sources, &[]),
            "adapter": text(),
            "resolved": {"type": "object", "additionalProperties": list(text())},
            "approver": truth(),
            "purpose": text(),
            "resource": text(),
            "amounts": closed(json!({"documents": amount(1 << 53), "bytes": amount(1 << 53)}), &[]),
            "delegate": closed(delegate, &["to"]),
            "override": texts(&["by", "justification"]),
        }),
        &[],
    )
}

fn receipt() -> Value {
    closed(
        json!({
            "receipt": text(), "session": text(), "ran": truth(), "answer": words(&["yes", "no"]),
            "results": {"type": "object"},
        }),
        &["receipt"],
    )
}

fn outcome() -> Value {
    words(&["allow", "allow_with_redaction", "defer_for_approval", "deny"])
}

fn decision() -> Value {
    let code = words(&[
        "rule",
        "no_approver",
        "facet_unknown",
        "autonomy",
        "managed",
        "mode_net",
        "network",
        "delegation",
        "limit",
        "engine_error",
    ]);
    let refusal = json!({
        "type": "object",
        "properties": {"rule": text(), "resource_class": text(), "reason": text(), "code": code},
        "required": ["rule", "resource_class", "reason", "code"],
    });
    let matched = json!({
        "type": "object",
        "properties": {
            "rule": text(), "scope": text(), "class": class(), "effect": words(&["allow", "prompt", "deny"]),
            "level": words(&["advisory", "soft", "strict"]), "constraint": text(), "advisory": truth(),
            "status": words(&["decided", "advisory", "shadowed"]),
        },
        "required": ["rule", "scope", "effect", "level", "advisory", "status"],
    });
    let gates = ["network", "mandate", "tools", "classes", "sandbox", "said", "egress"];
    let verdicts = ["pass", "allow", "allow_with_redaction", "defer_for_approval", "deny"];
    json!({
        "type": "object",
        "properties": {
            "id": text(),
            "outcome": outcome(),
            "rule": text(),
            "denied": refusal,
            "asks": list(refusal),
            "budget": {"type": "object"},
            "sources": {"type": "object"},
            "flags": list(text()),
            "overridden": {"type": "object", "properties": {
                "rules": list(text()), "by": text(), "justification": text()}},
            "matched": list(matched),
            "trace": list(json!({"type": "object", "properties": {
                "gate": words(&gates), "verdict": words(&verdicts)}, "required": ["gate", "verdict"]})),
        },
        "required": ["outcome", "rule", "asks", "budget", "sources", "flags", "matched", "trace"],
    })
}

fn audit() -> Value {
    json!({
        "type": "object",
        "properties": {
            "seq": {"type": "integer", "minimum": 0},
            "ts": time(),
            "prev": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "kind": words(&["decision", "approval", "override", "policy", "sandbox", "loss", "daemon", "checkpoint"]),
            "agent_id": text(),
            "principal": {"type": "object"},
            "request": request(),
            "decision": decision(),
            "effect": words(&["done", "refused", "fenced", "killed", "none"]),
            "mechanism": text(),
            "strength": text(),
            "pid": {"type": "integer"},
            "exe": text(),
            "cgroup": {"type": "integer"},
            "latency_us": {"type": "integer"},
        },
        "required": ["seq", "prev", "hash", "kind"],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::{Format, of};
    use crate::policy::load;
    use crate::read::Keys;
    use crate::request::parse;

    /// `R-60`: the schemas and the reader know the same keys, object by object.
    #[test]
    fn schemas_know_the_keys_that_the_reader_takes() {
        let rule = "/properties/rules/items";
        let table: [(Format, String, &Keys); 16] = [
            (Format::Policy, String::new(), &load::POLICY),
            (Format::Policy, rule.to_owned(), &load::rule::RULE),
            (Format::Policy, format!("{rule}/properties/constraints"), &load::rule::CONSTRAINTS),
            (Format::Policy, "/properties/modes/additionalProperties".to_owned(), &load::MODE),
            (Format::Policy, "/properties/delegation".to_owned(), &load::DELEGATION),
            (Format::Policy, "/properties/limits".to_owned(), &load::LIMITS),
            (Format::Policy, "/properties/network".to_owned(), &load::network::POLICY),
            (
                Format::Policy,
                "/properties/network/properties/allow/items/anyOf/1".to_owned(),
                &load::network::HOLE,
            ),
            (Format::Managed, String::new(), &load::MANAGED),
            (Format::Managed, "/properties/network".to_owned(), &load::network::MANAGED),
            (Format::Request, String::new(), &parse::REQUEST),
            (Format::Request, "/properties/action".to_owned(), &parse::ACTION),
            (Format::Request, "/properties/principal".to_owned(), &parse::PRINCIPAL),
            (Format::Request, "/properties/delegate".to_owned(), &parse::DELEGATE),
            (Format::Request, "/properties/override".to_owned(), &parse::OVERRIDE),
            (Format::Receipt, String::new(), &parse::RECEIPT),
        ];
        for (format, path, keys) in table {
            let schema = of(format);
            let object = schema.pointer(&path).unwrap_or_else(|| panic!("{path}"));
            let properties = object["properties"].as_object().unwrap_or_else(|| panic!("{path}"));
            let told: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            let read: BTreeSet<&str> = keys.known.iter().copied().collect();
            assert_eq!(told, read, "{} {path}", format.as_str());
            assert_eq!(object["additionalProperties"], Value::Bool(false), "{path}");
        }
    }
}
