// Claims with JDBC's defaults: a connection is in autocommit until told
// otherwise.  Prints what the driver reports of each scene.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLWarning;
import java.sql.Statement;

public class Claim {
	static void claim(Connection connection, String scene) throws Exception {
		try (PreparedStatement claim =
				connection.prepareStatement("SELECT idem_claim(?, ?)")) {
			claim.setString(1, "jdbc " + scene);
			claim.setString(2, "orders");
			try (ResultSet result = claim.executeQuery()) {
				result.next();
				System.out.println(scene + ": " + result.getString(1));
			}
			for (SQLWarning warning = claim.getWarnings(); warning != null;
					warning = warning.getNextWarning())
				System.out.println(scene + ": " + warning.getSQLState() + " "
					+ warning.getMessage());
		}
	}

	public static void main(String[] args) throws Exception {
		try (Connection connection = DriverManager.getConnection(args[0]);
				Statement work = connection.createStatement()) {
			claim(connection, "default");
			work.executeUpdate("INSERT INTO work VALUES ('jdbc')");

			connection.setAutoCommit(false);
			claim(connection, "transaction");
			work.executeUpdate("INSERT INTO work VALUES ('jdbc')");
			connection.commit();
			claim(connection, "transaction");
			connection.commit();

			connection.setAutoCommit(true);
			claim(connection, "transaction");
		}
	}
}
