//! The bench over a veth pair: each system that its columns have gets through.

use super::*;

#[test]
fn every_system_is_measured_over_the_veth_pair() {
    in_bare_namespace(|_| {
        let systems: &[&str] = match missing() {
            None => &["no-proxy", "mmproxy", "inline"],
            Some(reason) => {
                skip_for_kernel(&reason);
                &["no-proxy", "mmproxy"]
            }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let json = folder.path().join("bench.json");
        let columns = ["stream", "rr1", "rr50", "cps", "bulk1", "bulk4"].map(|name| format!("veth_{name}"));
        let output = Command::new(env!("CARGO_BIN_EXE_mmproxy-bench"))
            .args(["--rounds", "1", "--seconds", "0.3", "--columns", &columns.join(",")])
            .args(["--systems", &systems[1..].join(",")])
            .arg("--json")
            .arg(&json)
            .output()
            .expect("the bench runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let text = std::fs::read_to_string(json).expect("written");
        let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for column in &columns {
            for &system in systems {
                let rate = object["samples"][column][system][0]["rate"].as_f64();
                assert!(rate > Some(0.0), "{column} {system}: {said}");
            }
        }
    });
}
