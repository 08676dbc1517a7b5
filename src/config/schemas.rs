//! The settings of payload schemas, `schema`, `schemas` and `schema_version` of `[defaults]` and `[types.<name>]`:
//! reads the files and compiles them, once. What cannot be read or is no schema is a mistake of the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_domain::SmolStr;
use longshore_domain::admission::{PayloadSchema, Schemas, newest};
use longshore_domain::name::there_are;

use super::entries::TYPE;
use super::kind::Text;
use super::own_kinds::Files;
use super::problem::{Origin, Problem};
use super::section::Section;
use crate::json_schema::JsonSchema;

/// Compiled schemas by file: a type that inherits those of `[defaults]` does not compile them again.
#[derive(Debug, Default)]
pub(crate) struct Compiled(BTreeMap<PathBuf, Result<Arc<dyn PayloadSchema>, String>>);

impl Compiled {
    fn of(&mut self, path: &Path) -> Result<Arc<dyn PayloadSchema>, String> {
        let compile = || {
            let schema = JsonSchema::read(path).map_err(|error| error.to_string())?;
            Ok(Arc::new(schema) as Arc<dyn PayloadSchema>)
        };
        self.0.entry(path.to_owned()).or_insert_with(compile).clone()
    }

    /// The schemas of a type.
    pub(crate) fn schemas(&mut self, section: &Section<'_>) -> Result<Option<Schemas>, Problem> {
        // What the type sets wins over what [defaults] sets, whichever of the two it is.
        let (one, several) = (section.origin(TYPE.schema.name), section.origin(TYPE.schemas.name));
        match (one, several) {
            (None, None) => Ok(None),
            (Some((one, _)), Some((other, _))) if one == other => {
                Err(section.problem(TYPE.schema.name, "stands beside schemas; one of them is enough".to_owned()))
            }
            (Some((own, origin)), None | Some((false, _))) => {
                // A value of the wrong kind is reported already.
                let Some(Text(file)) = section.get(&TYPE.schema) else { return Ok(None) };
                if section.origin(TYPE.schema_version.name).is_some_and(|(of_type, _)| of_type == own) {
                    let reason = "has no meaning without schemas, which have versions".to_owned();
                    return Err(section.problem(TYPE.schema_version.name, reason));
                }
                let schema = self.of(&origin.beside(&file));
                schema.map(Schemas::one).map(Some).map_err(|reason| section.problem(TYPE.schema.name, reason))
            }
            (_, Some((_, origin))) => self.versions(section, origin),
        }
    }

    fn versions(&mut self, section: &Section<'_>, origin: &Origin) -> Result<Option<Schemas>, Problem> {
        let Some(Files(files)) = section.get(&TYPE.schemas) else { return Ok(None) };
        let mut versions = BTreeMap::new();
        for (version, file) in &files {
            let schema = self.of(&origin.beside(file));
            let schema =
                schema.map_err(|reason| section.problem(TYPE.schemas.name, format!("{version:?}: {reason}")))?;
            versions.insert(SmolStr::new(version), schema);
        }
        let version = section.get(&TYPE.schema_version).map(|version| version.0);
        let Some(default) = version.as_deref().or_else(|| newest(files.keys().map(String::as_str))) else {
            let reason = "which version is the newest is not clear, as not all are numbers; set schema_version";
            return Err(section.problem(TYPE.schemas.name, reason.to_owned()));
        };
        let known = there_are(files.keys().map(String::as_str));
        let wrong = format!("{default:?} is not a version of schemas; {known}");
        let schemas = Schemas::several(versions, SmolStr::new(default));
        schemas.map(Some).ok_or_else(|| section.problem(TYPE.schema_version.name, wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{load, settings};
    use longshore_domain::JobType;

    fn written(name: &str, text: &str) -> String {
        let path = std::env::temp_dir().join(format!("longshore-schema-{}-{name}.json", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    #[test]
    fn a_type_has_one_schema_or_several() {
        let (numbers, texts) = (written("n", r#"{"type":"number"}"#), written("t", r#"{"type":"string"}"#));
        let text = format!(
            "[defaults]\nschema = '{numbers}'\n[types.plain]\n[types.versions]\nschemas = {{ 1 = '{numbers}', 2 = '{texts}' }}\n\
             [types.set]\nschemas = {{ old = '{numbers}', new = '{texts}' }}\nschema_version = 'old'"
        );
        let policies = settings(&text).policies;
        let check = |job_type: &str, version: Option<&str>, payload: &str| {
            let policy = policies.of(&JobType::parse(job_type).unwrap());
            policy.schemas.as_ref().unwrap().check(version, payload.as_bytes()).is_ok()
        };
        assert!(check("plain", None, "1") && !check("plain", None, "'x'") && check("other", None, "1"));
        assert!(check("versions", None, r#""x""#) && check("versions", Some("1"), "1"));
        assert!(!check("versions", Some("3"), "1"));
        assert!(check("set", None, "1") && !check("set", None, r#""x""#) && check("set", Some("new"), r#""x""#));
    }

    #[test]
    fn what_is_no_schema_is_a_mistake_with_its_place() {
        let (wrong, fetches) = (written("w", r#"{"type":"nmber"}"#), written("f", r#"{"$ref":"http://x.test/a"}"#));
        let (broken, good) = (written("b", "{"), written("g", "{}"));
        for (settings, says) in [
            ("schema = 'nowhere.json'".to_owned(), "cannot be read"),
            (format!("schema = '{wrong}'"), "is no JSON Schema"),
            (format!("schema = '{broken}'"), "is not JSON"),
            (format!("schema = '{fetches}'"), "is no JSON Schema"),
            (format!("schemas = {{ a = '{good}', b = '{good}' }}"), "set schema_version"),
            (format!("schemas = {{ 1 = '{good}' }}\nschema_version = '2'"), "is not a version of schemas"),
            (format!("schema = '{good}'\nschemas = {{ 1 = '{good}' }}"), "stands beside schemas"),
            (format!("schema = '{good}'\nschema_version = '2'"), "has no meaning without schemas"),
        ] {
            let error = load(&format!("[types.a]\n{settings}"), &[]).unwrap_err();
            assert!(error.contains(says) && error.contains("types.a.schema"), "{settings}: {error}");
        }
    }
}
