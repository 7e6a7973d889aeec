//! The file with the last good answers: an engine that starts while DNS is away has the servers that it had.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{Answers, Found, Question};
use crate::journal;

/// What the file begins with.
const FORMAT: &str = "proxyengine names 1";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    answers: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    question: Question,
    found: Vec<Found>,
}

/// The file beside the journal.
pub fn path(journal: &Path) -> PathBuf {
    journal::with_ending(journal, ".names")
}

/// What is kept; nothing if there is no file, or none that is whole.
pub fn read(path: &Path) -> Answers {
    let text = match journal::read_whole(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Answers::new(),
        Err(error) => return refused(path, &error.to_string()),
    };
    match serde_json::from_str::<Document>(&text) {
        Ok(document) if document.format == FORMAT => {
            let answers = document.answers.into_iter();
            answers
                .map(|kept| (kept.question, kept.found.into_iter().collect()))
                .collect()
        }
        Ok(_) => refused(path, "it is of another format"),
        Err(error) => refused(path, &error.to_string()),
    }
}

fn refused(path: &Path, reason: &str) -> Answers {
    log::warn!(
        "{}: {reason}; no address of a name is known from before",
        path.display()
    );
    Answers::new()
}

/// Keeps these instead.
pub fn write(path: &Path, answers: &Answers) {
    let kept = answers.iter().map(|(question, found)| Kept {
        question: question.clone(),
        found: found.iter().cloned().collect(),
    });
    let document = Document {
        format: FORMAT.to_owned(),
        answers: kept.collect(),
    };
    let written = serde_json::to_string_pretty(&document)
        .map_err(std::io::Error::from)
        .and_then(|text| journal::write_whole(path, &(text + "\n")));
    if let Err(error) = written {
        log::warn!(
            "{}: {error}; the addresses of names will not outlive the engine",
            path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_and_what_is_not_whole_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = path(&folder.path().join("journal"));
        assert_eq!(read(&path), Answers::new(), "there is none");
        let question = Question {
            name: "_ldap._tcp.example.net".to_owned(),
            is_service: true,
        };
        let found = Found {
            priority: 1,
            ip: "10.0.0.1".parse().expect("an address"),
            port: 389,
            weight: 5,
            host: "one.example.net".to_owned(),
        };
        let answers = Answers::from([(question, [found].into())]);
        write(&path, &answers);
        assert_eq!(read(&path), answers);
        let whole = std::fs::read_to_string(&path).expect("the file");
        for text in [
            "",
            "[]",
            &whole[..whole.len() / 2],
            &whole.replace("names 1", "names 2"),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read(&path), Answers::new(), "{text}");
        }
    }
}
