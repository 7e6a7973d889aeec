//! The JSON file of a run, which another run can be added to.

use crate::stats::{Samples, Summary};
use crate::{Options, congestion};

/// Rounds of an earlier run that measured in the same way.
pub(crate) fn read(path: &str, options: &Options) -> Result<Samples, String> {
    let failed = |error: &dyn std::fmt::Display| format!("--merge {path}: {error}");
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut object: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    if object["seconds"] != options.seconds || object["congestion"] != congestion(options.congestion.as_deref()) {
        return Err(failed(&"its seconds or congestion control were others"));
    }
    let samples: Samples = serde_json::from_value(object["samples"].take()).map_err(|error| failed(&error))?;
    for column in samples.values() {
        let no_proxy = column.get("no-proxy").map_or(0, Vec::len);
        if column.values().any(|rounds| rounds.len() != no_proxy) {
            return Err(failed(&"it was measured in other systems than these"));
        }
    }
    Ok(samples)
}

/// Writes the file that `--json` names.
pub(crate) fn write(options: &Options, summary: &Summary, samples: &Samples) -> Result<(), String> {
    let Some(path) = &options.json else { return Ok(()) };
    let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
    let mut object = summary.json(options.seconds);
    object.insert("congestion".into(), congestion(options.congestion.as_deref()).into());
    let samples = serde_json::to_value(samples).map_err(|error| failed(&error))?;
    object.insert("samples".into(), samples);
    if let Ok(costs) = mmproxy::inline::kernel::costs() {
        for (program, version, ns) in costs.ns_per_packet {
            object.insert(format!("inline_ns_per_packet_{program}_v{version}"), ns.into());
        }
        object.insert("inline_bytes_per_connection".into(), costs.bytes_per_connection.into());
    }
    let text = serde_json::to_string_pretty(&object).map_err(|error| failed(&error))?;
    std::fs::write(path, text + "\n").map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{COLUMNS, Sample, stats};

    #[test]
    fn a_run_is_added_to_one_that_was_measured_alike() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bench.json").display().to_string();
        let sample = Some(Sample {
            rate: 1.0,
            cpu: None,
            machine_cpu: Some(2.0),
            p99: None,
        });
        let of_column = ["no-proxy", "inline"].map(|name| (name.to_owned(), vec![sample, None]));
        let samples = Samples::from([("veth_cps".to_owned(), of_column.into())]);
        let options = Options {
            json: Some(path.clone()),
            congestion: Some("reno".into()),
            ..Options::default()
        };
        write(&options, &stats::summarise(&COLUMNS, &samples), &samples).expect("written");
        let read_again = read(&path, &options).expect("read");
        assert_eq!(read_again["veth_cps"]["inline"].len(), 2);
        assert_eq!(read_again["veth_cps"]["inline"][0].map(|sample| sample.rate), Some(1.0));
        let other = Options {
            seconds: 2.0,
            ..options
        };
        assert!(read(&path, &other).is_err());
    }
}
