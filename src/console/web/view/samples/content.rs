//! Artifacts, configs, and tokens for joining.

use super::*;
use muster_topics::diagnostic::Diagnostic;

/// The host that has used a token.
pub(super) const TOKEN_HOST: HostId = HostId(uuid::Uuid::from_u128(7));

pub(super) fn tokens() -> Vec<Token> {
    let token = |id: &str, expires_ms, used| Token {
        id: id.parse().unwrap(),
        operator: "admin".parse().unwrap(),
        created_ms: ago(1_000),
        expires_ms,
        used,
        replaces: None,
    };
    vec![
        token("0a1b2c3d4e", ago(-2_600), None),
        token("1a1b2c3d4e", ago(-600), Some((ago(500), TOKEN_HOST))),
        token("2a1b2c3d4e", ago(60), None),
    ]
}

pub(super) fn created() -> CreatedToken {
    let token = format!("muster1.{}", "eyJ1cmwiOiJodHRwczovLzE5Mi4w".repeat(7));
    CreatedToken {
        id: "0a1b2c3d4e".parse().unwrap(),
        command: format!("muster agent --join {token}"),
        token,
        expires_ms: ago(-3_600),
        warning: Some(
            Diagnostic::new("no other machine reaches https://127.0.0.1:7443")
                .with_hint("start it with another address"),
        ),
    }
}

pub(super) fn artifact(version: &str) -> Artifact {
    Artifact {
        sha256: Digest::of(version.as_bytes()),
        size_bytes: 4_812_344,
        role: "till".parse().unwrap(),
        version: version.parse().unwrap(),
        manifest: Some(Digest::of(b"manifest")),
        created_ms: ago(86_000),
    }
}

pub(super) fn manifest() -> Manifest {
    serde_json::from_value(serde_json::json!({
        "role": "till", "version": "7", "description": HOSTILE, "channel": "notify", "args": ["-c", HOSTILE],
        "provides": {"web": {"port": 8080, "protocol": HOSTILE}, "admin": {}},
        "requires": {"db": {}, "cache": {"optional": true}},
        "config_schema": {"type": "object", "required": [HOSTILE]},
    }))
    .unwrap()
}

pub(super) fn config(content: Option<serde_json::Value>) -> Config {
    Config {
        id: "till.main".parse().unwrap(),
        version: "7".parse().unwrap(),
        sha256: Digest::of(b"{}"),
        created_ms: ago(5_000),
        content,
    }
}

pub(super) fn secret() -> Secret {
    Secret {
        realm: "default".parse().unwrap(),
        name: "db-password".parse().unwrap(),
        version: 3,
        set_ms: ago(60),
        operator: "admin".parse().unwrap(),
        readable: false,
        units: 2,
        behind: 1,
    }
}

pub(super) fn secret_view() -> SecretView {
    let Secret { realm, name, set_ms, operator, .. } = secret();
    let version = |version, state| SecretVersion { version, set_ms, operator: operator.clone(), state };
    let user = |version| SecretUser {
        host: TOKEN_HOST,
        hostname: HOSTILE.to_owned(),
        unit: "default/till".parse().unwrap(),
        version,
    };
    let detail = SecretDetail {
        secret: Some(secret()),
        versions: vec![
            version(3, SecretVersionState::Unreadable),
            version(2, SecretVersionState::Stored),
            version(1, SecretVersionState::Erased),
        ],
        users: vec![user(2), user(3)],
        configs: vec![SecretConfig { id: "till.main".parse().unwrap(), version: "7".parse().unwrap() }],
    };
    SecretView { realm, name, detail, problem: Some(problem(HOSTILE)) }
}
