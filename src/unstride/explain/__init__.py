"""What a layer computes, as text, picture and page."""
