//! What people decided while the daemon runs, and what sessions used: kept in SQLite, so that it survives a restart.
//!
//! Rules are kept as the JSON that the policy reader takes, and read by it at each load; nothing here judges.

use std::path::Path;

use guard_policy::{
    Sessions,
    session::{Usage, UsageKey, Used},
};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

/// Version of the tables; a file of a later one is not touched.
const VERSION: i64 = 1;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("error[store_unusable]: {path}: {source}; move the file away to start with an empty store")]
    Open { path: String, source: rusqlite::Error },
    #[error(
        "error[store_newer]: {path} is of version {found}, and this guard-core knows {VERSION}; use the newer one"
    )]
    Newer { path: String, found: i64 },
    #[error("error[store_failed]: the store does not take a change: {0}")]
    Change(#[from] rusqlite::Error),
}

/// The open store.
#[derive(Debug)]
pub struct Database(Connection);

impl Database {
    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// [`DatabaseError`]
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let failed = |source| DatabaseError::Open { path: path.display().to_string(), source };
        let connection = Connection::open(path).map_err(failed)?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if found > VERSION {
            return Err(DatabaseError::Newer { path: path.display().to_string(), found });
        }
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 PRAGMA synchronous = NORMAL;
                 PRAGMA busy_timeout = 2000;
                 CREATE TABLE IF NOT EXISTS rules (id TEXT PRIMARY KEY, body TEXT NOT NULL, by_whom TEXT NOT NULL, added_at TEXT NOT NULL) STRICT;
                 CREATE TABLE IF NOT EXISTS autonomy (space TEXT PRIMARY KEY, value TEXT NOT NULL, by_whom TEXT NOT NULL, set_at TEXT NOT NULL) STRICT;
                 CREATE TABLE IF NOT EXISTS overrides (at TEXT NOT NULL, session TEXT NOT NULL, rules TEXT NOT NULL, by_whom TEXT NOT NULL, justification TEXT NOT NULL) STRICT;
                 CREATE TABLE IF NOT EXISTS usage (session TEXT NOT NULL, managed INTEGER NOT NULL, rule TEXT NOT NULL, count INTEGER NOT NULL, cents INTEGER NOT NULL, PRIMARY KEY (session, managed, rule)) STRICT;
                 PRAGMA user_version = 1;",
            )
            .map_err(failed)?;
        Ok(Self(connection))
    }

    /// Makes a change and what follows from it, or neither.
    ///
    /// # Errors
    /// What the change ends with.
    pub fn attempt<T, E: From<DatabaseError>>(
        &self,
        change: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let transaction = self.0.unchecked_transaction().map_err(DatabaseError::from)?;
        let value = change(self)?;
        transaction.commit().map_err(DatabaseError::from)?;
        Ok(value)
    }

    /// Everything that the policy reader takes from here.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn document(&self) -> Result<Value, DatabaseError> {
        let rules: Vec<Value> = self.rules()?.into_iter().map(|(rule, _)| rule).collect();
        let mut autonomy = serde_json::Map::new();
        let mut rows = self.0.prepare("SELECT space, value FROM autonomy ORDER BY space")?;
        for row in rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))? {
            let (space, value) = row?;
            autonomy.insert(space, value.into());
        }
        Ok(json!({"rules": rules, "autonomy": autonomy}))
    }

    /// The rules, each with who added it and when.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn rules(&self) -> Result<Vec<(Value, Value)>, DatabaseError> {
        let mut rows = self.0.prepare("SELECT body, by_whom, added_at FROM rules ORDER BY id")?;
        let rows = rows.query_map([], |row| {
            let origin = json!({"by": row.get::<_, String>(1)?, "at": row.get::<_, String>(2)?});
            Ok((row.get::<_, String>(0)?, origin))
        })?;
        let parsed = rows.map(|row| {
            let (body, origin) = row?;
            Ok((serde_json::from_str(&body).unwrap_or(Value::Null), origin))
        });
        parsed.collect()
    }

    /// One rule.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn rule(&self, id: &str) -> Result<Option<Value>, DatabaseError> {
        let body: Option<String> =
            self.0.query_row("SELECT body FROM rules WHERE id = ?1", [id], |row| row.get(0)).optional()?;
        Ok(body.and_then(|body| serde_json::from_str(&body).ok()))
    }

    /// Adds a rule under its own name.
    ///
    /// # Errors
    /// There is one by this name, or the store does not take it.
    pub fn add_rule(&self, id: &str, rule: &Value, by: &str) -> Result<(), DatabaseError> {
        let now = jiff::Timestamp::now().to_string();
        self.0
            .execute("INSERT INTO rules VALUES (?1, ?2, ?3, ?4)", params![id, rule.to_string(), by, now])?;
        Ok(())
    }

    /// Takes a rule away; what it was, if it was there.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn remove_rule(&self, id: &str) -> Result<Option<Value>, DatabaseError> {
        let before = self.rule(id)?;
        self.0.execute("DELETE FROM rules WHERE id = ?1", [id])?;
        Ok(before)
    }

    /// Sets the dial of a space; what it was before.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn set_autonomy(&self, space: &str, value: &str, by: &str) -> Result<Option<String>, DatabaseError> {
        let before = self
            .0
            .query_row("SELECT value FROM autonomy WHERE space = ?1", [space], |row| row.get(0))
            .optional()?;
        let now = jiff::Timestamp::now().to_string();
        self.0.execute(
            "INSERT OR REPLACE INTO autonomy VALUES (?1, ?2, ?3, ?4)",
            params![space, value, by, now],
        )?;
        Ok(before)
    }

    /// Keeps an override beside its record.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn add_override(
        &self,
        session: &str,
        lifted: &guard_policy::decision::Overridden,
    ) -> Result<(), DatabaseError> {
        let now = jiff::Timestamp::now().to_string();
        let rules = json!(lifted.rules).to_string();
        self.0.execute(
            "INSERT INTO overrides VALUES (?1, ?2, ?3, ?4, ?5)",
            params![now, session, rules, lifted.by, lifted.justification],
        )?;
        Ok(())
    }

    /// Keeps what a session has used.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn save_usage(&mut self, session: &str, usage: &Usage) -> Result<(), DatabaseError> {
        let transaction = self.0.transaction()?;
        for (key, used) in usage.iter() {
            // Sums beyond what a column holds are beyond every ceiling.
            let cap = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
            transaction.execute(
                "INSERT OR REPLACE INTO usage VALUES (?1, ?2, ?3, ?4, ?5)",
                params![session, key.managed, key.rule.as_str(), cap(used.count), cap(used.cents)],
            )?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// What every session had used.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn sessions(&self) -> Result<Sessions, DatabaseError> {
        let mut sessions = Sessions::default();
        let mut rows = self.0.prepare("SELECT session, managed, rule, count, cents FROM usage")?;
        let rows = rows.query_map([], |row| {
            let key = UsageKey { managed: row.get(1)?, rule: row.get::<_, String>(2)?.into() };
            let amount = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok((row.get::<_, String>(0)?, key, Used { count: amount(3)?, cents: amount(4)? }))
        })?;
        for row in rows {
            let (session, key, used) = row?;
            sessions.restore(&session, key, used);
        }
        Ok(sessions)
    }
}

#[cfg(test)]
mod tests {
    use guard_policy::{Context, Policy, Request};

    use super::*;

    /// `C-084`, `C-085`: rules and the dial are there after a restart, until somebody takes them away.
    #[test]
    fn what_was_decided_survives_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let rule = json!({"id": "remembered-1", "class": "gitPush", "effect": "allow", "provenance": "remembered", "expires_at": "2030-01-01T00:00:00Z"});
        {
            let store = Database::open(&path).expect("opens");
            store.add_rule("remembered-1", &rule, "alice").expect("added");
            assert!(store.add_rule("remembered-1", &rule, "bob").is_err(), "a name is taken once");
            assert_eq!(store.set_autonomy("alpha", "actFreely", "alice").expect("set"), None);
        }
        let store = Database::open(&path).expect("opens again");
        let found = store.document().expect("read");
        assert_eq!(found, json!({"rules": [rule], "autonomy": {"alpha": "actFreely"}}));
        let text = found.to_string();
        assert!(Policy::load_stored(None, None, Some(("store", text.as_bytes()))).is_ok());
        assert_eq!(store.rules().expect("read")[0].1["by"], "alice");
        assert_eq!(store.remove_rule("remembered-1").expect("taken away"), Some(rule));
        assert_eq!(store.remove_rule("remembered-1").expect("nothing there"), None);
        let before = store.set_autonomy("alpha", "proposeOnly", "bob").expect("set");
        assert_eq!(before.as_deref(), Some("actFreely"));
    }

    /// `R-15`: a ceiling goes on counting after a restart.
    #[test]
    fn usage_survives_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let policy = br#"{"rules": [{"id": "few", "class": "fileDelete", "effect": "allow", "constraints": {"max_count": 5}}]}"#;
        let policy = Policy::load(Some(("p", policy)), None).expect("valid");
        let ask = |sessions: &mut Sessions| {
            let request =
                br#"{"principal": {"session": "s"}, "action": {"classes": ["fileDelete"], "count": 3}}"#;
            let request = Request::parse(request).expect("valid");
            sessions.decide(&policy, &request, &Context::new(jiff::Timestamp::now(), true)).outcome.as_str()
        };
        let mut sessions = Sessions::default();
        assert_eq!(ask(&mut sessions), "allow");
        let mut store = Database::open(&path).expect("opens");
        store.save_usage("s", sessions.usage("s").expect("used")).expect("kept");
        drop(store);
        let mut restored = Database::open(&path).expect("opens again").sessions().expect("read");
        assert_eq!(ask(&mut restored), "defer_for_approval");
    }

    #[test]
    fn a_store_of_a_later_version_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let other = Connection::open(&path).expect("opens");
        other.pragma_update(None, "user_version", 99).expect("set");
        assert!(matches!(Database::open(&path), Err(DatabaseError::Newer { found: 99, .. })));
        std::fs::write(
            directory.path().join("junk.db"),
            "no database, only words that are long enough to be read as one",
        )
        .expect("written");
        assert!(Database::open(&directory.path().join("junk.db")).is_err());
    }
}
