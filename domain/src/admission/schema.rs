//! The schemas of a type's payloads, by version. What a schema says is not known here: the edges read and compile them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

/// A schema for payloads.
pub trait PayloadSchema: fmt::Debug + Send + Sync {
    /// Whether the payload is as the schema wants it.
    ///
    /// # Errors
    /// Where it is not, and why: `/items/0/price: value is not of type "number"`. It must not repeat the payload.
    fn check(&self, payload: &[u8]) -> Result<(), String>;
}

/// The schemas of one type. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Schemas(Arc<Versions>);

#[derive(Debug)]
enum Versions {
    /// There is one, and it has no version.
    One(Arc<dyn PayloadSchema>),
    /// Several, and the version of jobs that name none.
    Several(BTreeMap<SmolStr, Arc<dyn PayloadSchema>>, SmolStr),
}

impl Schemas {
    /// One schema without versions.
    pub fn one(schema: Arc<dyn PayloadSchema>) -> Self {
        Self(Arc::new(Versions::One(schema)))
    }

    /// Schemas by version, and the version of jobs that name none; `None`: that version is not among them.
    pub fn several(versions: BTreeMap<SmolStr, Arc<dyn PayloadSchema>>, default: SmolStr) -> Option<Self> {
        versions.contains_key(&default).then(|| Self(Arc::new(Versions::Several(versions, default))))
    }

    /// Whether a payload is as the schema of this version wants it.
    ///
    /// # Errors
    /// There is no such version, or where the payload is wrong and why; names the field of `submit`.
    pub fn check(&self, version: Option<&str>, payload: &[u8]) -> Result<(), String> {
        match (&*self.0, version) {
            (Versions::One(schema), None) => schema.check(payload).map_err(|wrong| format!("payload {wrong}")),
            (Versions::One(_), Some(version)) => {
                Err(format!("schema_version: there is no {version:?}, the schema of its type has no versions"))
            }
            (Versions::Several(versions, default), version) => {
                let version = version.unwrap_or(default);
                let Some(schema) = versions.get(version) else {
                    let known: Vec<&str> = versions.keys().map(SmolStr::as_str).collect();
                    return Err(format!(
                        "schema_version: there is no {version:?} of its type, but {}",
                        known.join(", ")
                    ));
                };
                schema.check(payload).map_err(|wrong| format!("payload {wrong}, by version {version} of its schema"))
            }
        }
    }
}

/// Two are equal if they are the same: compiled schemas cannot be compared.
impl PartialEq for Schemas {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The newest of these versions, if they are numbers with dots (`2`, `1.10`); `None`: their order is not known.
pub fn newest<'v>(versions: impl IntoIterator<Item = &'v str>) -> Option<&'v str> {
    let numbers = |version: &str| version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>();
    let numbered = versions.into_iter().map(|version| Some((numbers(version)?, version)));
    let numbered = numbered.collect::<Option<Vec<_>>>()?;
    numbered.into_iter().max().map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Only(&'static [u8]);

    impl PayloadSchema for Only {
        fn check(&self, payload: &[u8]) -> Result<(), String> {
            if payload == self.0 { Ok(()) } else { Err("/a: is wrong".to_owned()) }
        }
    }

    fn only(payload: &'static [u8]) -> Arc<dyn PayloadSchema> {
        Arc::new(Only(payload))
    }

    #[test]
    fn the_version_of_a_job_chooses_its_schema() {
        let versions = BTreeMap::from([("1".into(), only(b"a")), ("2".into(), only(b"b"))]);
        assert!(Schemas::several(versions.clone(), "3".into()).is_none());
        let schemas = Schemas::several(versions, "2".into()).unwrap();
        assert_eq!(schemas.check(Some("1"), b"a"), Ok(()));
        assert_eq!(schemas.check(None, b"b"), Ok(()));
        assert_eq!(schemas.check(None, b"a").unwrap_err(), "payload /a: is wrong, by version 2 of its schema");
        let unknown = schemas.check(Some("7"), b"a").unwrap_err();
        assert_eq!(unknown, "schema_version: there is no \"7\" of its type, but 1, 2");
        let one = Schemas::one(only(b"a"));
        assert_eq!(one.check(None, b"a"), Ok(()));
        assert!(one.check(Some("1"), b"a").unwrap_err().starts_with("schema_version: there is no \"1\""));
    }

    #[test]
    fn the_newest_version_has_the_greatest_number() {
        assert_eq!(newest(["2", "10", "9"]), Some("10"));
        assert_eq!(newest(["1.9", "1.10", "1"]), Some("1.10"));
        assert_eq!(newest(["1", "next"]), None);
        assert_eq!(newest([]), None);
    }
}
